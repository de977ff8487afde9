"""What ``state_dict()`` of a module holds: its sharded parameters as they are, or whole tensors.

Two ranks, rows [1 2 3 4]::

    SHARDED     rank 0: DTensor with local [1 2]    rank 1: DTensor with local [3 4]
    FULL        both:   [1 2 3 4]                   a gather when saving, a cut when loading
"""

from __future__ import annotations

from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from reference_models.fsdp.modules.state import own_state


class StateDictType(Enum):
    """See the top of this file."""

    SHARDED = "sharded"
    FULL = "full"


#: What has been asked for, of modules that are not of the default type.
_types: WeakKeyDictionary[nn.Module, StateDictType] = WeakKeyDictionary()
#: What owns parameters that a strategy replicates: state dicts hold whole tensors of them, whatever has been asked for.
_always_whole: WeakSet[nn.Module] = WeakSet()
#: What makes tensors whole in state dicts, and cuts them when they are loaded, of modules with whole tensors.
_hooks: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()


def set_state_dict_type(module: nn.Module, kind: StateDictType) -> None:
    """Say what ``state_dict()`` holds, and what ``load_state_dict`` takes, of ``module`` and all below it.

    Raises ValueError unless given a ``StateDictType``.
    """
    if not isinstance(kind, StateDictType):
        raise ValueError(f"expected a StateDictType, such as StateDictType.FULL; got {kind!r}")
    for each in module.modules():
        _types[each] = kind
        _hook(each)


def state_dict_type(module: nn.Module) -> StateDictType:
    """What ``state_dict()`` of a module holds."""
    return _types.get(module, StateDictType.SHARDED)


def always_whole(module: nn.Module) -> None:
    """Let state dicts hold whole tensors of the parameters of this module's own call, of whatever type they are."""
    for parameter in (parameter for group in own_state(module).groups for parameter in group.parameters):
        for owner in parameter.owners:
            _always_whole.add(owner.module)
            _hook(owner.module)


def _hook(module: nn.Module) -> None:
    """Gather and cut from now on where whole tensors are wanted, and nowhere else."""
    hooks = _hooks.setdefault(module, [])
    while hooks:
        hooks.pop().remove()
    if module in _always_whole or state_dict_type(module) is StateDictType.FULL:
        hooks.append(module._register_state_dict_hook(_gather_into))
        hooks.append(module.register_load_state_dict_pre_hook(_cut_out_of))


def _gather_into(module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    for key in (prefix + name for name in module._parameters):
        if isinstance(entry := state_dict.get(key), DTensor):
            state_dict[key] = entry.full_tensor().detach()


def _cut_out_of(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module._parameters.items():
        whole = state_dict.get(prefix + name)
        if isinstance(parameter, DTensor) and isinstance(whole, Tensor) and not isinstance(whole, DTensor):
            device = parameter.device_mesh.device_type
            cut = distribute_tensor(whole.to(device), parameter.device_mesh, parameter.placements, src_data_rank=None)
            state_dict[prefix + name] = cut
