"""What ``state_dict()`` of a module holds: its sharded parameters as they are, or whole tensors.

Two ranks, rows [1 2 3 4]::

    SHARDED     rank 0: DTensor with local [1 2]    rank 1: DTensor with local [3 4]
    FULL        both:   [1 2 3 4]                   a gather when saving, a cut when loading
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from reference_models.fsdp.modules.state import ModuleState, own_state, states_of


class StateDictType(Enum):
    """See the top of this file."""

    SHARDED = "sharded"
    FULL = "full"


#: What has been asked for, of modules that are not of the default type.
_types: WeakKeyDictionary[nn.Module, StateDictType] = WeakKeyDictionary()
#: Of what replicates by a strategy, state dicts hold whole tensors, whatever type has been asked for.
_always_whole: WeakSet[nn.Module] = WeakSet()
#: What makes tensors whole in state dicts, and cuts them when they are loaded, of modules with whole tensors.
_hooks: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()


def set_state_dict_type(module: nn.Module, kind: StateDictType) -> None:
    """Say what ``state_dict()`` holds, and what ``load_state_dict`` takes, of ``module`` and all below it."""
    for each in module.modules():
        _types[each] = kind
    for state in states_of(module.modules()):
        _hook(state)


def state_dict_type(module: nn.Module) -> StateDictType:
    """What ``state_dict()`` of a module holds."""
    return _types.get(module, StateDictType.SHARDED)


def always_whole(module: nn.Module) -> None:
    """Let state dicts hold whole tensors of this module's own parameters, of whatever type they are."""
    _always_whole.add(module)
    _hook(own_state(module))


def _hook(state: ModuleState) -> None:
    """Gather and cut from now on where whole tensors are wanted, and nowhere else."""
    for root in state.modules:
        hooks = _hooks.setdefault(root, [])
        while hooks:
            hooks.pop().remove()
        if root in _always_whole or state_dict_type(root) is StateDictType.FULL:
            hooks.append(root._register_state_dict_hook(_gather_into))
            hooks.append(root.register_load_state_dict_pre_hook(_cut_out_of))


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
    """The keys and sharded parameters of one ``fully_shard`` call below ``module``, each by every name that it has."""
    state, names = own_state(module), dict[nn.Module, list[str]]()
    for name, each in module.named_modules(remove_duplicate=False):
        names.setdefault(each, []).append(f"{prefix}{name}." if name else prefix)
    for parameter in (parameter for group in state.groups for parameter in group.parameters):
        for owner in parameter.owners:
            for inside in names.get(owner.module, ()):
                registered = owner.module._parameters[owner.name]
                assert isinstance(registered, DTensor), "state dicts are taken and loaded while sharded"
                yield inside + owner.name, registered
