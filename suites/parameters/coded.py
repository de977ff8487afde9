"""Weights that go through a gather in a form of their own: tensors with hooks, as the all-gather extensions ask for.

A ``Parted`` weight is sent as two tensors, of half its precision each, whose sum it is to the last bit::

    rank 0: [1.001] is sent as [1.0] in bfloat16 and [0.001] in float32    unsharded: [1.0 + 0.001, …]

A ``Scaled`` weight is sent as bytes and one number to divide by, another on every rank::

    rank 1: [-1, 2] is sent as [-2, 4] in int8 and [2]    unsharded: [… , -2 / 2, 4 / 2]
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_map_only

#: What half of the precision is.
NARROW = {torch.float64: torch.float32, torch.float32: torch.bfloat16, torch.bfloat16: torch.bfloat16}


def plain(tensor: Tensor) -> Tensor:
    """The tensor without its wrapper, if it has one."""
    return tensor.held if isinstance(tensor, Coded) else tensor.detach()


def part_up(local: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Two tensors of ``rows`` rows whose sum is ``local``; missing rows are zeros."""
    own = plain(local)
    padded = own.new_zeros(rows, *own.shape[1:])
    padded[: own.size(0)].copy_(own)
    high = padded.to(NARROW[own.dtype])
    return high, padded - high.to(own.dtype)


def put_together(parts: tuple[Tensor, ...], rows: int, dtype: torch.dtype) -> Tensor:
    """The first ``rows`` rows of the sum, in ``dtype``."""
    high, low = parts
    return (high.to(low.dtype) + low)[:rows].to(dtype)


def hand_over(full: Tensor, out: Tensor | None, *more: Tensor) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """What a post-hook answers: the full tensor and what to free at first, and later nothing, but fills ``out``."""
    if out is None:
        return full, (full, *more)
    if out.shape != full.shape:
        raise ValueError(f"expected the post-hook to be given an out of shape {full.shape}, got {out.shape}")
    out.data.copy_(full)  # by ``.data``, which autograd does not count as a change
    return None


#: The arguments of hooks' calls, by rank: ranks may be threads, and the backward of a device runs on one of its own.
CALLS: dict[int, list[dict[str, Any]]] = {}


def calls() -> list[dict[str, Any]]:
    """Those of this rank."""
    return CALLS.setdefault(dist.get_rank(), [])


def filled(module: nn.Module) -> list[bool]:
    """Of each tensor that was handed over for a module, to be freed, whether it has all its memory."""
    return [each.untyped_storage().nbytes() >= each.numel() * each.itemsize for each in vars(module)["handed over"]]


class Coded(Tensor):
    """A tensor around a plain one, that stays of its class through whatever is done to it."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Coded:
        """A wrapper of the same size and dtype."""
        made: Coded = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            held.stride(),
            held.storage_offset(),
            dtype=held.dtype,
            device=held.device,
            requires_grad=held.requires_grad,
        )
        return made

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.held})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """The name of the plain tensor."""
        return ["held"], None

    @classmethod
    def __tensor_unflatten__(cls, held: dict[str, Tensor], *_: Any) -> Coded:
        """The wrapper again."""
        return cls(held["held"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Do it to the plain tensors, and wrap what comes of it; what is done in place gives the tensor itself."""
        plain_args, plain_kwargs = tree_map_only(Coded, lambda coded: coded.held, (args, kwargs or {}))
        result = func(*plain_args, **plain_kwargs)
        if func._schema.is_mutable:
            return args[0] if func._schema.returns else None
        return tree_map_only(Tensor, cls, result)


class Parted(Coded):
    """A weight in two parts, with hooks of five arguments."""

    def fsdp_pre_all_gather(
        self, mesh: DeviceMesh, outer_size: torch.Size, outer_stride: tuple[int, ...], module: nn.Module, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Send both parts, padded to the size that all ranks have."""
        note = {
            "mesh": mesh.mesh.tolist(),
            "size": list(outer_size),
            "stride": list(outer_stride),
            "module": module,
            "policy": mp_policy,
        }
        calls().append(note)
        return part_up(self, -(-outer_size[0] // mesh.size())), (outer_size[0], note)

    def fsdp_post_all_gather(
        self, outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Tensor | None = None
    ) -> Any:
        """Add up what came; hand over a tensor beside it, that is to be freed too."""
        rows, note = metadata
        spare = outputs[1].new_ones(3)
        full = put_together(outputs, rows, param_dtype)
        if out is None:
            vars(note["module"])["handed over"] = [full, spare]
        note["came"] = [[list(part.shape), part.dtype] for part in outputs]
        note["dtype"], note["out"], note["filled"] = param_dtype, out is not None, filled(note["module"])
        return hand_over(full, out, spare)


class Padded(Parted):
    """Leaves it to the implementation to cut off the rows that pad."""

    def fsdp_post_all_gather(
        self, outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Tensor | None = None
    ) -> Any:
        """At first, hand over as many rows as came."""
        rows, note = metadata
        rows = outputs[0].size(0) if out is None else rows
        return super().fsdp_post_all_gather(outputs, (rows, note), param_dtype, out=out)


class PartedByMesh(Coded):
    """The same with the older hook, of one argument; for rows that ranks divide."""

    def fsdp_pre_all_gather(self, mesh: DeviceMesh) -> tuple[tuple[Tensor, ...], Any]:
        """Send both parts."""
        calls().append({})
        return part_up(self, self.size(0)), self.size(0) * mesh.size()

    def fsdp_post_all_gather(
        self, outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Tensor | None = None
    ) -> Any:
        """Add up what came."""
        return hand_over(put_together(outputs, metadata, param_dtype), out)


class PartedByColumns(Coded):
    """The same for columns that ranks divide; what comes has the numbers of the whole weight in their order."""

    def fsdp_pre_all_gather(
        self, mesh: DeviceMesh, outer_size: torch.Size, outer_stride: tuple[int, ...], module: nn.Module, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], torch.Size]:
        """Send both parts."""
        calls().append({})
        return part_up(self, self.size(0)), outer_size

    def fsdp_post_all_gather(
        self, outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Tensor | None = None
    ) -> Any:
        """Add up what came."""
        high, low = (part.view(metadata) for part in outputs)
        return hand_over(put_together((high, low), metadata[0], param_dtype), out)


class Scaled(Coded):
    """A weight of small whole numbers as bytes, with a scale of its own on every rank; for rows that ranks divide."""

    def fsdp_pre_all_gather(self, mesh: DeviceMesh) -> tuple[tuple[Tensor, ...], Any]:
        """Send bytes, and one number."""
        calls().append({})
        own, scale = plain(self), 2.0 ** mesh.get_local_rank()
        return ((own * scale).to(torch.int8), own.new_full((1,), scale)), None

    def fsdp_post_all_gather(
        self, outputs: tuple[Tensor, ...], metadata: Any, param_dtype: torch.dtype, *, out: Tensor | None = None
    ) -> Any:
        """Divide every rank's bytes by its number."""
        codes, scales = outputs
        each = scales.repeat_interleave(codes.size(0) // scales.numel()).unflatten(0, (-1, *[1] * (codes.dim() - 1)))
        return hand_over((codes.to(param_dtype) / each).to(param_dtype), out)


class Unpadded(Parted):
    """Sends what it has, also where other ranks have more."""

    def fsdp_pre_all_gather(
        self, mesh: DeviceMesh, outer_size: torch.Size, outer_stride: tuple[int, ...], module: nn.Module, mp_policy: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Send both parts, as long as they are here."""
        return part_up(self, self.size(0)), (outer_size[0], {})


class ThreeArguments(PartedByMesh):
    """A hook with an unsupported number of arguments."""

    def fsdp_pre_all_gather(self, mesh: DeviceMesh, outer_size: torch.Size, module: nn.Module) -> Any:  # type: ignore[override]
        """Never called."""


class OnlyBefore(Coded):
    """One of the two hooks."""

    fsdp_pre_all_gather = PartedByMesh.fsdp_pre_all_gather


class OnlyAfter(Coded):
    """The other one."""

    fsdp_post_all_gather = PartedByMesh.fsdp_post_all_gather


def coded(net: nn.Sequential, kind: type[Coded]) -> nn.Sequential:
    """Make every weight of two dims one of ``kind``, in place."""
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 2:
                setattr(module, name, nn.Parameter(kind(parameter.detach())))
    return net
