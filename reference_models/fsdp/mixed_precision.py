"""Which dtypes a module computes and reduces in, and how tensors in nested values are cast.

    MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

gathers and computes in bfloat16, and reduces gradients in float32; parameters, gradients and optimizer keep their own.
Two ranks, a float32 parameter [1.001 2 3 4]: both compute with [1 2 3 4] in bfloat16; their gradients [1 0 0 0] and
[0.00390625 0 0 0] have the mean 0.501953125 in float32, which bfloat16 would have rounded to 0.5.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_DEEPEST = 100


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """``param_dtype`` to gather and compute in, ``reduce_dtype`` to reduce in, ``output_dtype`` for outputs.

    None keeps what is there. Floating inputs are cast to ``param_dtype`` unless ``cast_forward_inputs`` is False.
    ``param_dtype_override_fn`` is asked of each parameter once: one of which it says its own dtype keeps that.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    param_dtype_override_fn: Callable[[nn.Parameter], torch.dtype | None] | None = None

    def of(self, parameter: nn.Parameter) -> MixedPrecisionPolicy:
        """The policy of one parameter. Raises ValueError if it says another dtype than the two that there are."""
        asked = self.param_dtype_override_fn and self.param_dtype_override_fn(parameter)
        if asked is None:
            return self
        if asked not in (self.param_dtype, parameter.dtype):
            raise ValueError(
                f"param_dtype_override_fn should say None, {self.param_dtype} (the param_dtype) or {parameter.dtype} "
                f"(the parameter's own dtype), got {asked!r}"
            )
        return dataclasses.replace(self, param_dtype=asked)


def cast(value: Any, dtype: torch.dtype | None) -> Any:
    """``value`` with its floating tensors in ``dtype``; itself if ``dtype`` is None."""
    if dtype is None:
        return value
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any, depth: int = 0) -> Any:
    """``value`` with every tensor changed, in lists, tuples, sets, dicts, named tuples and dataclasses, however nested.

    A container in which nothing changed is returned as it was; another is of the same class, a dict with its other
    attributes. Raises RuntimeError for a value that contains itself.
    """
    if depth > _DEEPEST:
        raise RuntimeError(f"a nested value exceeded max depth {_DEEPEST}: does it contain itself?")
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        changed = [map_tensors(change, item, depth + 1) for item in value]
        if _same(changed, value):
            return value
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if type(value) is not dict and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(change, value, depth)
    if isinstance(value, dict) and value:
        items = {key: map_tensors(change, item, depth + 1) for key, item in value.items()}
        return value if _same(items.values(), value.values()) else _like_dict(value, items)
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nested value, in order."""
    if isinstance(value, Tensor):  # as most outputs are
        return [value]
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(note, value)
    return found


def _dataclass(change: Callable[[Tensor], Tensor], value: Any, depth: int) -> Any:
    """Its constructor is not given all fields; and it may be a dict, which has items besides."""
    before = {field: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}
    after = {field: map_tensors(change, item, depth + 1) for field, item in before.items()}
    named = {field.name for field in before}
    items = {key: item for key, item in value.items() if key not in named} if isinstance(value, dict) else {}
    changed_items = map_tensors(change, items, depth)
    if changed_items is items and _same(after.values(), before.values()):
        return value
    made = dataclasses.replace(value, **{field.name: item for field, item in after.items() if field.init})
    for field, item in after.items():
        if not field.init:
            object.__setattr__(made, field.name, item)  # also where it is frozen
    for key, item in changed_items.items():
        made[key] = item
    return made


def _like_dict(value: dict[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    made = copy.copy(value)  # its constructor may take something else than items
    if getattr(value, "__dict__", None) is value:
        made.__dict__ = made
    for key, item in items.items():
        made[key] = item
    return made


def _same(left: Any, right: Any) -> bool:
    return all(map(operator.is_, left, right))
