"""Parameters that bring their own way to be gathered: hooks ``fsdp_pre_all_gather`` and ``fsdp_post_all_gather``.

Two ranks, rows [1.0 2.0] and [3.0 4.0] of a parameter that travels as whole numbers and a scale::

    pre, on each rank    inputs ([1 2], [1.0]) and ([3 4], [1.0]), of any dtypes, and metadata
    gathered             outputs [1 2 3 4] and [1.0 1.0]
    post                 the unsharded tensor [1.0 2.0 3.0 4.0], and the tensors whose memory it lives in

The first gather's post makes that tensor; later ones are given it as ``out`` and fill it. Its memory, and that of the
outputs, comes and goes as that of any unsharded parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from reference_models.fsdp.errors import NotAllowed
from reference_models.fsdp.layout.mesh import DataMesh
from reference_models.fsdp.layout.sharding import Cut
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy

_PRE, _POST = "fsdp_pre_all_gather", "fsdp_post_all_gather"


class Extension:
    """How one parameter's hooks send it and build it again."""

    def __init__(self, cut: Cut, mesh: DataMesh, module: nn.Module) -> None:
        self._cut, self._mesh, self._module = cut, mesh, module
        self._metadata: Any = None
        self._sizes: list[torch.Size] = []
        self._outputs: list[Tensor] = []
        self._inner: tuple[Tensor, ...] = ()
        self._bytes: list[int] = []  # of what ``_inner`` lives in

    def send(self, local: Tensor, precision: MixedPrecisionPolicy) -> list[Tensor]:
        """What the hook makes of this rank's rows, each flat."""
        hook: Any = getattr(local, _PRE)
        signature = inspect.signature(hook)
        if len(signature.parameters) not in (1, 5):
            raise NotAllowed(
                f"Invalid {_PRE}{signature}: expected (mesh), or (mesh, outer_size, outer_stride, module, mp_policy)"
            )
        stride = torch.empty(self._cut.shape, device="meta").stride()
        given = (self._mesh.shard_mesh, self._cut.shape, stride, self._module, precision)
        inputs, self._metadata = hook(*given[: len(signature.parameters)])
        self._check_padded(local, inputs)
        self._sizes = [each.size() for each in inputs]
        return [each.reshape(-1) for each in inputs]

    def _check_padded(self, local: Tensor, inputs: tuple[Tensor, ...]) -> None:
        padded = self._cut.padded_shape
        if local.size() != padded and any(each.size() != padded for each in inputs):
            raise NotAllowed(
                f"expected {_PRE} to return tensors padded to {tuple(padded)}, since ranks do not divide the rows of "
                f"{tuple(self._cut.shape)}, got {[tuple(each.size()) for each in inputs]}: pad with zeros"
            )

    def build(self, local: Tensor, columns: Iterator[Tensor], dtype: torch.dtype) -> Tensor:
        """The unsharded tensor, from what all ranks have sent; the first time."""
        whole, self._inner = getattr(local, _POST)(self._received(columns), self._metadata, dtype)
        self._bytes = [inner.untyped_storage().nbytes() for inner in self._inner]
        rows = self._cut.shape[self._cut.dim]
        made: Tensor = whole if whole.size(self._cut.dim) == rows else whole.narrow(self._cut.dim, 0, rows)
        return made

    def fill(self, local: Tensor, columns: Iterator[Tensor], dtype: torch.dtype, unsharded: Tensor) -> None:
        """Write what all ranks have sent into the unsharded tensor, in the memory that it had."""
        for inner, size in zip(self._inner, self._bytes, strict=True):
            regrow(inner.untyped_storage(), size)
        with _unsafe_preserve_version_counter(unsharded):
            getattr(local, _POST)(self._received(columns), self._metadata, dtype, out=unsharded)

    def free(self) -> None:
        """Free the memory of the outputs and of the unsharded tensor."""
        for tensor in (*self._outputs, *self._inner):
            tensor.untyped_storage().resize_(0)

    def _received(self, columns: Iterator[Tensor]) -> tuple[Tensor, ...]:
        return tuple(self._output(place, size, next(columns)) for place, size in enumerate(self._sizes))

    def _output(self, place: int, size: torch.Size, column: Tensor) -> Tensor:
        if place == len(self._outputs):
            self._outputs.append(torch.empty(column.numel(), dtype=column.dtype, device=column.device))
        flat = self._outputs[place]
        regrow(flat.untyped_storage(), flat.numel() * flat.itemsize)
        if self._cut.dim and size == self._cut.padded_shape:
            flat.view(self._cut.joined_shape).copy_(self._cut.joined(column))
            return flat.view(self._cut.shape)
        flat.view(column.shape).copy_(column)
        return flat.view(-1, *size[1:])


def has_extension(local: Tensor) -> bool:
    """Whether a tensor brings both hooks. Raises NotAllowed for one of them alone."""
    has = [hasattr(local, name) for name in (_PRE, _POST)]
    if any(has) and not all(has):
        raise NotAllowed(f"Both {_PRE} and {_POST} should be defined: {type(local).__name__} has one of them")
    return all(has)


def carry_hooks(old: Tensor, new: Tensor) -> None:
    """Give ``new``, which takes the place of ``old``, the hooks that a user has put on that one tensor."""
    for name in (_PRE, _POST):
        hook = vars(old).get(name)
        if hook is not None:
            setattr(new, name, MethodType(hook.__func__, new) if isinstance(hook, MethodType) else hook)


def regrow(memory: torch.UntypedStorage, size: int) -> None:
    """Give memory that may have been freed so many bytes again; what was kept stays where it is."""
    if memory.nbytes() != size:
        memory.resize_(size)
