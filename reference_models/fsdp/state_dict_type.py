"""What ``state_dict()`` of a module holds: its sharded parameters as they are, or whole tensors.

Two ranks, rows [1 2 3 4]::

    SHARDED     rank 0: DTensor with local [1 2]    rank 1: DTensor with local [3 4]
    FULL        both:   [1 2 3 4]                   a gather when saving, a cut when loading
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from reference_models.fsdp.lazy_init import sharding_state
from reference_models.fsdp.state import ModuleState


class StateDictType(Enum):
    """See the top of this file."""

    SHARDED = "sharded"
    FULL = "full"


def set_state_dict_type(module: nn.Module, kind: StateDictType, *, recurse: bool = True) -> None:
    """Say what ``state_dict()`` holds, and what ``load_state_dict`` takes, of ``module`` and those below it."""
    for state in _states(module, recurse):
        _drop(state)
        if kind is StateDictType.FULL:
            for root in state.modules:
                state.dict_hooks.append(root._register_state_dict_hook(_gather_into))
                state.dict_hooks.append(root.register_load_state_dict_pre_hook(_cut_out_of))


def state_dict_type(module: nn.Module) -> StateDictType:
    """What ``state_dict()`` of a sharded module holds. Raises ValueError for a module that is not."""
    state = sharding_state(module)
    if state is None:
        raise ValueError(f"expected a module given to fully_shard or replicate, got {type(module).__name__}")
    return StateDictType.FULL if state.dict_hooks else StateDictType.SHARDED


def _drop(state: ModuleState) -> None:
    for hook in state.dict_hooks:
        hook.remove()
    state.dict_hooks.clear()


def _states(module: nn.Module, recurse: bool) -> Iterator[ModuleState]:
    for each in module.modules() if recurse else (module,):
        state = sharding_state(each)
        if state is not None:
            yield state


def _gather_into(module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    for key, parameter in _own(module, prefix):
        if isinstance(state_dict.get(key), DTensor):
            state_dict[key] = parameter.full_tensor().detach()


def _cut_out_of(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for key, parameter in _own(module, prefix):
        whole = state_dict.get(key)
        if isinstance(whole, Tensor) and not isinstance(whole, DTensor):
            device = parameter.device_mesh.device_type
            cut = distribute_tensor(whole.to(device), parameter.device_mesh, parameter.placements, src_data_rank=None)
            state_dict[key] = cut


def _own(module: nn.Module, prefix: str) -> Iterator[tuple[str, DTensor]]:
    """The keys and sharded parameters of one ``fully_shard`` call below ``module``."""
    state = sharding_state(module)
    assert state is not None
    names = {each: name for name, each in module.named_modules()}
    for parameter in (parameter for group in state.groups for parameter in group.parameters):
        for owner in parameter.owners:
            if owner.module in names:
                registered = owner.module._parameters[owner.name]
                assert isinstance(registered, DTensor), "state dicts are taken and loaded while sharded"
                inside = names[owner.module]
                yield prefix + (f"{inside}.{owner.name}" if inside else owner.name), registered
