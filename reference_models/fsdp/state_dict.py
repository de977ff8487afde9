"""State by name: full dicts on rank 0, and optimizer state that other ranks, meshes and world sizes can load.

``module.state_dict()`` is sharded already: DTensors under the parameters' names. These functions gather it, spread it
again, and do the same for optimizers, whose own state dicts name parameters by number::

    {"state": {"0.weight": {"exp_avg": DTensor, "step": tensor(1.)}},
     "param_groups": [{"lr": 0.1, "params": ["0.weight"]}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

State = dict[str, Any]


def full_state_dict(module: nn.Module, *, cpu: bool = True, rank0_only: bool = True) -> State:
    """The unsharded model's state dict, in order; with ``rank0_only`` others get an empty one. A collective act."""
    return dict(_gathered(module.state_dict(), cpu, rank0_only))


def load_full_state_dict(module: nn.Module, state: Mapping[str, Any], *, from_rank0: bool = False) -> None:
    """Load an unsharded state dict; with ``from_rank0`` only rank 0 needs to have one. A collective act.

    Raises ValueError that names keys which are missing or unknown.
    """
    own = module.state_dict()
    keys = _from_rank0(list(state)) if from_rank0 else list(state)
    _check_names(keys, own, "state dict")
    device = _device(own)
    loaded = {}
    for key, target in own.items():
        loaded[key] = _spread(_tensor(state.get(key), target, device, from_rank0), target)
    module.load_state_dict(loaded, assign=any(value.is_meta for value in own.values()))


def optimizer_state_dict(module: nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The optimizer's state, sharded as its parameters are, by the parameters' names."""
    names = _names(module)
    groups = [_named_group(group, names) for group in optimizer.param_groups]
    state = {name: dict(optimizer.state[p]) for p, name in names.items() if p in optimizer.state}
    return {"state": state, "param_groups": groups}


def full_optimizer_state_dict(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, cpu: bool = True, rank0_only: bool = True
) -> State:
    """``optimizer_state_dict`` with unsharded tensors. A collective act; with ``rank0_only`` others get no state."""
    sharded = optimizer_state_dict(module, optimizer)
    state = {name: dict(_gathered(entries, cpu, rank0_only)) for name, entries in sharded["state"].items()}
    if rank0_only and dist.get_rank() != 0:
        return {}
    return {"state": state, "param_groups": sharded["param_groups"]}


def load_optimizer_state_dict(module: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Load what one of the two functions above gave, on this mesh or another.

    DTensors of the same layout are taken as they are, others and full tensors are spread as the parameters are. What
    the dict has no state for, a frozen parameter say, keeps none. Raises ValueError for parameters that are unknown or
    grouped otherwise; then nothing has changed.
    """
    parameters = {name: parameter for parameter, name in _names(module).items()}
    unknown = sorted(set(state["state"]) - set(parameters))
    if unknown:
        raise ValueError(f"optimizer state dict: unknown parameters {', '.join(unknown)}; was it of another model?")
    groups = _groups_in_order(optimizer, state, _names(module))
    optimizer.state.clear()
    for name, entries in state["state"].items():
        parameter = parameters[name]
        optimizer.state[parameter] = {key: _fitted(value, parameter) for key, value in entries.items()}
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})


def _gathered(state: Mapping[str, Any], cpu: bool, rank0_only: bool) -> list[tuple[str, Any]]:
    found = []
    for key, value in state.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if rank0_only and dist.get_rank() != 0:
            continue
        found.append((key, _copied(whole, cpu) if isinstance(whole, Tensor) else whole))
    return found


def _copied(whole: Tensor, cpu: bool) -> Tensor:
    """A copy, so that what was saved stays as it was while training goes on."""
    return whole.detach().to("cpu" if cpu else whole.device, copy=True)


def _tensor(value: Any, target: Tensor, device: torch.device, from_rank0: bool) -> Tensor:
    """The full tensor for ``target``, broadcast from rank 0 if only that has it."""
    if not from_rank0:
        assert isinstance(value, Tensor)
        return value.to(device)
    whole = torch.empty(target.size(), dtype=target.dtype, device=device)
    if dist.get_rank() == 0:
        whole.copy_(value)
    dist.broadcast(whole, src=0)
    return whole


def _device(state: Mapping[str, Tensor]) -> torch.device:
    """Where state is loaded to: the device of the mesh, also for what is on the meta device yet."""
    meshes = (value.device_mesh for value in state.values() if isinstance(value, DTensor))
    return torch.device(next((mesh.device_type for mesh in meshes), "cpu"))


def _spread(whole: Tensor, target: Tensor) -> Tensor:
    if not isinstance(target, DTensor):
        return whole
    return distribute_tensor(whole.to(target.dtype), target.device_mesh, target.placements, src_data_rank=None)


def _fitted(value: Any, parameter: nn.Parameter) -> Any:
    if not isinstance(value, Tensor) or value.size() != parameter.size() or not isinstance(parameter, DTensor):
        return value.detach().clone() if isinstance(value, Tensor) else value
    if isinstance(value, DTensor):
        if value.device_mesh == parameter.device_mesh and value.placements == parameter.placements:
            return value.detach().clone()
        value = value.full_tensor()
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _named_group(group: Mapping[str, Any], names: Mapping[nn.Parameter, str]) -> State:
    return {**{k: v for k, v in group.items() if k != "params"}, "params": [names[p] for p in group["params"]]}


def _groups_in_order(optimizer: torch.optim.Optimizer, state: State, names: Mapping[nn.Parameter, str]) -> list[State]:
    by_names = {frozenset(group["params"]): group for group in state["param_groups"]}
    wanted = [frozenset(names[p] for p in group["params"]) for group in optimizer.param_groups]
    missing = [sorted(group) for group in wanted if group not in by_names]
    if missing:
        raise ValueError(f"optimizer state dict: no parameter group of exactly {missing[0]}; group parameters as saved")
    return [by_names[group] for group in wanted]


def _names(module: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in module.named_parameters()}


def _check_names(keys: list[str], own: Mapping[str, Any], what: str) -> None:
    missing, unknown = sorted(set(own) - set(keys)), sorted(set(keys) - set(own))
    if missing or unknown:
        raise ValueError(f"{what}: missing keys {missing}, unknown keys {unknown}")


def _from_rank0(keys: list[str]) -> list[str]:
    sent: list[Any] = [keys]
    dist.broadcast_object_list(sent, src=0)
    names: list[str] = sent[0]
    return names
