"""Computing in another dtype by explicit casts, as a mixed-precision policy has it: of an unsharded net.

A float32 weight of 1 + 2**-15 is 1 while a module runs in bfloat16; its gradient is of float32 again, as of any cast.
Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

#: Modules that hold parameters or modules for others, and whose forward is not called; the last is attention's.
NEVER_RUN = (nn.ModuleList, nn.ParameterList, nn.ParameterDict, NonDynamicallyQuantizableLinear)


def compute_in(policy: Mapping[str, Any], net: nn.Module, sharded: Iterable[str]) -> None:
    """Have every module run in the policy's dtypes, and those that are sharded cast what goes in and comes out."""
    compute, output = policy.get("param_dtype"), policy.get("output_dtype")
    override = policy.get("param_dtype_override_fn", lambda parameter: None)
    for module in [net.get_submodule(name) for name in sharded]:
        if compute and policy.get("cast_forward_inputs", True):
            module.register_forward_pre_hook(
                lambda _, args, kwargs: (cast(args, compute), cast(kwargs, compute)), with_kwargs=True
            )
        if output:
            module.register_forward_hook(lambda *found: cast(found[-1], output))
    for module in net.modules():
        if compute:
            _swap_parameters(module, lambda parameter: override(parameter) or compute)
        if hasattr(module, "halved"):
            vars(module)["halved"] = partial(_halved, module)  # by way of forward's hooks


def _halved(module: nn.Module, *inputs: Tensor, again: Tensor) -> Tensor:
    assert again is inputs[0]
    halved: Tensor = module(*inputs) / 2
    return halved


def _swap_parameters(module: nn.Module, dtype_of: Callable[[Tensor], torch.dtype]) -> None:
    """While the module runs, each of its parameters is a cast of itself, and each of its children's that never run."""
    never_run = [child for child in module.children() if isinstance(child, NEVER_RUN)]
    own = [(each, dict(each._parameters)) for each in (module, *never_run) if each._parameters]

    def before(*_: Any) -> None:
        for each, parameters in own:
            casts: Any = {name: None if p is None else cast(p, dtype_of(p)) for name, p in parameters.items()}
            each._parameters.update(casts)

    def after(*_: Any) -> None:
        for each, parameters in own:
            each._parameters.update(parameters)

    if own:
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, always_call=True)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """The same with all floating tensors in ``dtype``, in tuples, lists, sets, dicts and dataclasses of any class."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if is_dataclass(value) and not isinstance(value, type):
        casts = {field: cast(getattr(value, field.name), dtype) for field in fields(value)}
        made = replace(value, **{field.name: item for field, item in casts.items() if field.init})
        for field in (field for field in casts if not field.init):
            setattr(made, field.name, casts[field])
        return made
    if isinstance(value, dict):
        return value | {key: cast(item, dtype) for key, item in value.items()}  # of the same class
    if isinstance(value, (list, tuple, set)):
        make = getattr(value, "_make", type(value))  # of a named tuple
        return make(cast(item, dtype) for item in value)
    return value
