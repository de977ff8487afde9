"""What is settled only when training begins: who is the root, what everything is called, and that all is in place.

``fully_shard`` on net.0, net.1, net.2 and net, in this order; the first forward through net settles::

    root     net, since forward begins there; states in the order net, 0, 1, 2
    names    "" has the parameters that no child has; "0" has "0.weight" and "0.bias"
    ready    each group, when it first runs: no parameter on meta, offloaded ones on the CPU, one dtype to reduce in
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from reference_models.fsdp.communication.comms import ReduceScatterFromSymmetricMemory
from reference_models.fsdp.errors import NotAllowed
from reference_models.fsdp.modules.state import ModuleState, sharding_state, states_of
from reference_models.fsdp.offload import CPUOffloadPolicy
from reference_models.fsdp.parameters.param import ManagedParameter
from reference_models.fsdp.parameters.param_group import Form, ParameterGroup


def lazy_init(state: ModuleState) -> None:
    """Make ``state`` the root, if no module above it is a root yet; settle everything below it."""
    if state.is_root is None:
        if len(state.modules) > 1:
            raise RuntimeError(
                f"FSDP requires a single root module but got {len(state.modules)} modules: "
                "call fully_shard on the module that contains them too"
            )
        _make_root(state)
    if not state.is_ready:
        for group in state.groups:
            _check_in_place(group)
        state.set_ready()


def _make_root(root: ModuleState) -> None:
    """Settle a tree; where it is refused, it is as if nothing had been tried."""
    names = {module: name for name, module in root.modules[0].named_modules()}
    states = _uninitialized(names)
    groups = [group for state in states for group in state.groups]
    room = max(state.options.reduction_room for state in states)
    for parameter in (parameter for group in groups for parameter in group.parameters):
        parameter.name = _name_within(names, parameter)
    _refuse_shared_between(groups)
    if room > 1 and any(isinstance(group.options.reduce_scatter, ReduceScatterFromSymmetricMemory) for group in groups):
        raise ValueError(
            "symmetric memory has one buffer, got more than 1 from set_reduce_scatter_max_input_buffers: "
            "use 1, or ordinary memory"
        )
    root.tree.settle(states, room)
    places = {module: place for place, module in enumerate(names)}
    for state in states:
        own = sorted((module for module in state.modules if module in names), key=places.__getitem__)
        state.join(root.tree, ", ".join(names[module] for module in own))


def _name_within(names: dict[nn.Module, str], parameter: ManagedParameter) -> str:
    """The name that it has from a root whose modules have these names; some owners may be beyond it."""
    inside = [f"{names[module]}.{name}" for module, name in parameter.owners if module in names]
    return inside[0].removeprefix(".") if inside else parameter.name


def _uninitialized(names: dict[nn.Module, str]) -> list[ModuleState]:
    """The states of the modules, none of which may have a root yet."""
    for module, name in names.items():
        state = sharding_state(module)
        if state is not None and state.is_root is not None:
            raise RuntimeError(
                f"FSDP state has already been lazily initialized for {name}\n"
                "FSDP requires running forward through the root module first"
            )
    return states_of(names)


def _refuse_shared_between(groups: Sequence[ParameterGroup]) -> None:
    seen: dict[int, str] = {}
    for parameter in (parameter for group in groups for parameter in group.parameters):
        if id(parameter.origin) in seen:
            raise ValueError(
                f"parameter {parameter.name!r} is shared with a module sharded apart, where it is "
                f"{seen[id(parameter.origin)]!r}: shard modules that share it together, as fully_shard([a, b])"
            )
        seen[id(parameter.origin)] = parameter.name


def _check_in_place(group: ParameterGroup) -> None:
    if group.form is Form.SHARDED:  # else it was looked at when it was gathered
        group.look_again()
    _refuse_meta(group)
    _refuse_elsewhere(group)
    _refuse_mixed_dtypes(group)


def _refuse_meta(group: ParameterGroup) -> None:
    on_meta = [parameter.name for parameter in group.parameters if parameter.packed.is_meta]
    if on_meta:
        raise RuntimeError(
            "FSDP parameters should be materialized from meta device before training, "
            f"but the following were still on meta device: {on_meta}; give them memory by to_empty(), and then values"
        )


def _refuse_elsewhere(group: ParameterGroup) -> None:
    offloaded = [p for p in group.parameters if isinstance(p.offload, CPUOffloadPolicy)]
    elsewhere = [(p.name, str(p.packed.device)) for p in offloaded if p.packed.device.type != "cpu"]
    if elsewhere:
        raise RuntimeError(
            f"Found following parameters on non-CPU device: {elsewhere}; CPUOffloadPolicy expects them on the CPU: "
            "load or move them there"
        )


def _refuse_mixed_dtypes(group: ParameterGroup) -> None:
    dtypes = {p.dtype for p in group.parameters if p.sharded.requires_grad}
    if len(dtypes) > 1:
        raise NotAllowed(
            f"FSDP expects uniform original parameter dtype but got {sorted(map(str, dtypes))}: "
            "shard the modules that differ by themselves, or freeze their parameters"
        )
