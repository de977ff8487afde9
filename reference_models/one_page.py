"""Composable FSDP on one page, of even rows: gather before forward, free after it, gather again, reduce in backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def fully_shard(module: Any, *, mesh: DeviceMesh | None = None, reshard_after_forward: bool | None = None) -> Any:
    """Leave each of n ranks 1/n of every parameter's rows, in place. ValueError, at first, where that cannot be."""
    mesh = mesh or init_device_mesh(str(torch.accelerator.current_accelerator() or "cpu"), (dist.get_world_size(),))
    if isinstance(module, FSDPModule) or type(module).forward is nn.Module.forward:
        raise ValueError(f"expected a module with a forward, and each only once, got {type(module).__name__}")
    if reshard_after_forward not in (True, False, None):
        raise ValueError(f"expected True, False or None, got reshard_after_forward={reshard_after_forward!r}")
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if not isinstance(parameter, DTensor):
            owner, _, name = path.rpartition(".")
            places.setdefault(parameter, []).append((module.get_submodule(owner), name))
    sharded: list[nn.Parameter] = []
    for parameter in places:
        if parameter.ndim == 0 or parameter.shape[0] % mesh.size() or hasattr(parameter, "is_sharded"):
            raise ValueError(f"expected a dim 0 that {mesh.size()} ranks divide, not tied elsewhere: {parameter.shape}")
        part = parameter.detach().chunk(mesh.size())[mesh.get_local_rank()].to(mesh.device_type, copy=True)
        lies = DTensor.from_local(part, mesh, [Shard(0)], shape=parameter.shape, stride=parameter.stride())
        sharded.append(nn.Parameter(lies, parameter.requires_grad))
    places_of = {"places": list(places.values())}
    module.__class__ = type(f"FSDP{type(module).__name__}", (FSDPModule, type(module)), places_of)
    module.register(sharded)
    for parameter in places:
        parameter.is_sharded = True  # type: ignore[attr-defined]
    return module


class FSDPModule:
    """What a sharded module is besides its own class: its parameters are whole while its forward runs."""

    places: list[list[tuple[nn.Module, str]]]  # of each parameter, where it is registered: tied ones more than once

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - a slice of a container makes one not sharded
        return cls.__mro__[2](*args, **kwargs)

    def __deepcopy__(self, _: Any) -> Any:
        raise ValueError("expected a copy to be made of the module before it is sharded")

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        sharded: list[Any] = [owner._parameters[name] for (owner, name), *_ in self.places]
        wholes = [Gather.apply(p.to_local(), p.device_mesh) for p in sharded]  # type: ignore[no-untyped-call]
        self.register(wholes)
        try:
            with SavesPlaces(wholes, sharded):
                return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.register(sharded)

    def register(self, parameters: list[Any]) -> None:  # noqa: D102
        for parameter, places in zip(parameters, self.places, strict=True):
            for owner, name in places:
                owner._parameters[name] = parameter


class Gather(torch.autograd.Function):
    """All rows from the ranks' parts; in backward, this rank's part of the average of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, mesh: DeviceMesh) -> Tensor:  # noqa: D102
        ctx.mesh = mesh
        whole = part.new_empty(part.shape[0] * mesh.size(), *part.shape[1:])
        dist.all_gather_into_tensor(whole, part.contiguous(), mesh.get_group())
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        part = gradient.new_empty(gradient.shape[0] // ctx.mesh.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(part, gradient.contiguous() / ctx.mesh.size(), group=ctx.mesh.get_group())
        return part, None


class SavesPlaces(torch.autograd.graph.saved_tensors_hooks):
    """Of whole parameters, autograd saves only where in them a tensor lies, and backward gathers them again."""

    def __init__(self, wholes: list[Tensor], sharded: list[Any]) -> None:
        sharded_of = {whole.untyped_storage().data_ptr(): p for whole, p in zip(wholes, sharded, strict=True)}
        save_other, find_other = torch._C._autograd._top_saved_tensors_default_hooks(True) or (lambda each: each,) * 2

        def save(tensor: Tensor) -> Any:
            if (p := sharded_of.get(tensor.untyped_storage().data_ptr())) is None:
                return (save_other(tensor),)
            return p.detach().to_local(), p.device_mesh, tensor.size(), tensor.stride(), tensor.storage_offset()

        def find(saved: Any) -> Any:
            return Gather.apply(*saved[:2]).as_strided(*saved[2:]) if saved[1:] else find_other(*saved)  # type: ignore[no-untyped-call]

        super().__init__(save, find)
