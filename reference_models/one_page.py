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
        raise ValueError(f"expected True, False or None for reshard_after_forward, got {reshard_after_forward!r}")
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None and not isinstance(parameter, DTensor):
                places.setdefault(parameter, []).append((owner, name))
    sharded: list[nn.Parameter] = []
    for parameter in places:
        if parameter.ndim == 0 or parameter.shape[0] % mesh.size() or hasattr(parameter, "is_sharded"):
            raise ValueError(f"expected a dim 0 that {mesh.size()} ranks divide, not tied elsewhere: {parameter.shape}")
        rows = parameter.shape[0] // mesh.size()
        part = parameter.detach().narrow(0, mesh.get_local_rank() * rows, rows).to(mesh.device_type, copy=True)
        sharded.append(nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)]), parameter.requires_grad))
    added = {"mesh": mesh, "places": list(places.values())}
    module.__class__ = type(f"FSDP{type(module).__name__}", (FSDPModule, type(module)), added)
    module.register(sharded)
    for parameter in places:
        parameter.is_sharded = True  # type: ignore[attr-defined]
    return module


class FSDPModule:
    """What a sharded module is besides its own class: its parameters are whole while its forward runs."""

    mesh: DeviceMesh
    places: list[list[tuple[nn.Module, str]]]  # of each parameter, where it is registered: tied ones more than once

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - a slice of a container makes one not sharded
        return cls.__mro__[2](*args, **kwargs)

    def __deepcopy__(self, _: Any) -> Any:
        raise ValueError("expected a copy to be made of the module before it is sharded")

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        sharded: list[Any] = [owner._parameters[name] for (owner, name), *_ in self.places]
        parts = [parameter.to_local() for parameter in sharded]
        wholes = [Gather.apply(part, self.mesh) for part in parts]  # type: ignore[no-untyped-call]
        self.register(wholes)
        try:
            with SavesPlaces(wholes, parts, self.mesh):
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
    """Of whole parameters, autograd saves only where in them a tensor lies; backward gathers them again."""

    def __init__(self, wholes: list[Tensor], parts: list[Tensor], mesh: DeviceMesh) -> None:
        part_of = {whole.untyped_storage().data_ptr(): part for whole, part in zip(wholes, parts, strict=False)}

        def save(tensor: Tensor) -> Any:
            part = part_of.get(tensor.untyped_storage().data_ptr())
            return tensor if part is None else (part.detach(), tensor.size(), tensor.stride(), tensor.storage_offset())

        def find(saved: Any) -> Any:
            return saved if isinstance(saved, Tensor) else Gather.apply(saved[0], mesh).as_strided(*saved[1:])  # type: ignore[no-untyped-call]

        super().__init__(save, find)
