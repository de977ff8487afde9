"""Implementations whose parameters lie otherwise than torch's, or that take fewer kinds of nets."""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.weak import WeakIdKeyDictionary

from harness.vendor import CORE, Feature, Implementation
from tests.conforming.making import disclaiming, reference, variant
from tests.conforming.making import torch as torchs
from tests.conforming.noticing import noticed


def _last_dim(parameter: Any) -> Shard | None:
    """The last dim, if all ranks have the same of it, and some."""
    size = dist.get_world_size()
    if parameter.dim() > 1 and parameter.numel() and parameter.size(-1) % size == 0:
        noticed("cuts columns")
        return Shard(parameter.dim() - 1)
    return None


def _cuts_columns(base: Implementation) -> Implementation:
    """Cuts the last dim where ranks divide it. Right: which rank holds what is the implementation's business.

    Not where torch refuses to: over replicas alone that axes of a mesh name, nor over smaller groups between passes.
    """

    def fully_shard(module: Any, **options: Any) -> Any:
        assert base.fully_shard is not None
        shards = getattr(options.get("dp_mesh_dims"), "shard", "all")
        if shards and isinstance(options.get("reshard_after_forward"), (bool, NoneType)):
            options = {"shard_placement_fn": _last_dim, **options}
        return base.fully_shard(module, **options)

    made = replace(base, name="cuts columns", fully_shard=fully_shard)
    return disclaiming(made, {Feature.ROW_LAYOUT: "whatever dim the ranks divide is cut"})


def _takes_even_rows(base: Implementation) -> Implementation:
    """Refuses rows that ranks do not divide. Right: it does not claim to take them."""

    def fully_shard(module: Any, mesh: Any = None, **options: Any) -> Any:
        assert base.fully_shard is not None
        ranks = dist.get_world_size() if mesh is None else mesh.size(mesh.ndim - 1)
        parts = module if isinstance(module, (list, tuple)) else [module]
        for parameter in (p for part in parts for p in part.parameters() if not hasattr(p, "to_local")):
            if parameter.dim() and parameter.size(0) % ranks and "shard_placement_fn" not in options:
                raise NotImplementedError(f"Uneven sharding of {tuple(parameter.shape)} over {ranks} ranks")
        noticed("takes even rows alone")
        return base.fully_shard(module, mesh=mesh, **options)

    made = replace(base, name="takes even rows alone", fully_shard=fully_shard)
    return disclaiming(made, {Feature.UNEVEN_ROWS: "memory must be aligned"})


def _takes_float32(base: Implementation) -> Implementation:
    """Refuses parameters of other dtypes. Right: it does not claim to take them."""

    def fully_shard(module: Any, **options: Any) -> Any:
        assert base.fully_shard is not None
        for part in module if isinstance(module, (list, tuple)) else [module]:
            for name, parameter in part.named_parameters():
                if parameter.dtype != torch.float32:
                    raise NotImplementedError(f"expected {name} to be of float32, got {parameter.dtype}")
        noticed("takes float32 alone")
        return base.fully_shard(module, **options)

    made = replace(base, name="takes float32 alone", fully_shard=fully_shard)
    return disclaiming(made, {Feature.OTHER_DTYPES: "kernels are of float32"})


def _refused(_: Any) -> Any:
    raise RuntimeError("expected no deep copy: hooks that average would be lost")


def _averages(module: Any, mesh: Any = None, **_: Any) -> Any:
    """Keeps parameters whole, and averages each gradient as soon as it is there. Right: it claims no sharded ones."""
    group = None if mesh is None else mesh.get_group()

    def average(parameter: nn.Parameter) -> None:
        noticed("keeps replicas")
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=group)

    vars(module)["__deepcopy__"] = _refused
    done: set[nn.Parameter] = vars(module).setdefault("averaged", set())
    for inner in module.modules():
        done |= vars(inner).get("averaged", set())
    for parameter in module.parameters():
        if parameter not in done and parameter.requires_grad:
            done.add(parameter)
            parameter.register_post_accumulate_grad_hook(average)
    return module


def _read_by(kind: type[nn.Module], names: list[str]) -> type[nn.Module]:
    """The class, with properties that gather."""

    def read(name: str) -> property:
        def whole(module: nn.Module) -> Any:
            noticed("gathers when read")
            rows: Any = module._parameters[name]
            whole = rows.redistribute(placements=[Replicate()])
            return whole.to_local(grad_placements=[Partial("avg")]) if rows.is_floating_point() else whole.to_local()

        return property(whole)

    return type(f"Reading{kind.__name__}", (kind,), {name: read(name) for name in names})


#: What parameters have become, also those that another group shares.
_rows: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _gathers_when_read(module: Any, mesh: Any = None, **_: Any) -> Any:
    """Rows stay registered at all times, and reading a parameter gathers. Right: it claims no plain ones in forward."""
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for p in module.parameters():
        if not isinstance(p, DTensor) and p not in _rows:
            cut = distribute_tensor(p.detach(), mesh, [Shard(0)], src_data_rank=None)
            _rows[p] = nn.Parameter(cut, requires_grad=p.requires_grad)
    for inner in module.modules():
        names = [name for name, p in inner._parameters.items() if p in _rows]
        inner._parameters.update({name: _rows[inner._parameters[name]] for name in names})
        inner.__class__ = _read_by(type(inner), names) if names else type(inner)
    return module


cuts_columns = _cuts_columns(torchs)
takes_float32 = _takes_float32(torchs)
takes_even_rows = _takes_even_rows(reference)
keeps_replicas = Implementation(
    name="keeps replicas",
    claims=frozenset({Feature.FULLY_SHARD, Feature.UNEVEN_ROWS, Feature.OTHER_DTYPES, Feature.RECURSE}),
    fully_shard=_averages,
)
gathers_when_read = Implementation(
    name="gathers when read",
    claims=CORE - {Feature.STATE_DICT},
    fully_shard=_gathers_when_read,
)


def _undivided(module: Any, options: Any) -> None:
    """Gives sums over ranks. Right: it says so."""
    noticed("gives sums")
    module.set_gradient_divide_factor(1.0)


gives_sums = disclaiming(
    replace(variant("gives sums", reference, after=_undivided), sums_gradients=True),
    dict.fromkeys(
        (Feature.DIVIDE_FACTOR, Feature.FORCE_SUM, Feature.REPLICATE, Feature.REPLICATE_FSDP, Feature.WRAP_POLICY),
        "gradients are sums",
    ),
)
