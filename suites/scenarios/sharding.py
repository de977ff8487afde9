"""How the net of a scenario is sharded: its mesh, and the options of ``fully_shard``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Shard

from harness.worlds.rank import Rank
from suites.kit.programs import offload_policy
from suites.oracle.sharded import FORMS, Sharded, State, played_on
from suites.scenarios.bodies import ScenarioNet, plan
from suites.scenarios.changes import AFTERWARDS, change
from suites.scenarios.scenario import Scenario
from suites.scenarios.script import MIDDLE

RESHARD = {"always": True, "never": False, "pairs": 2}


def mesh_of(rank: Rank, scenario: Scenario) -> DeviceMesh:
    """The mesh, made anew or from a group that there is; after other groups if that is asked for."""
    if scenario.groups == "from group":
        group = rank.group(range(scenario.world_size))
        assert group is not None
        return DeviceMesh.from_group(group, rank.device.type)
    axes = ("replicate", "shard")[-len(scenario.axes) :]
    return rank.mesh(scenario.axes, axes) if scenario.tp == 1 else mesh_of_all(rank, scenario)[axes]


def mesh_of_all(rank: Rank, scenario: Scenario) -> DeviceMesh:
    """The same with the axis of tensor parallelism."""
    return rank.mesh((*scenario.axes, scenario.tp), (*("replicate", "shard")[-len(scenario.axes) :], "tp"))


@contextmanager
def other_groups(scenario: Scenario) -> Iterator[None]:
    """Have some ranks made groups before, which end with the scenario: later ones depend on what each rank has made."""
    made = []
    if scenario.groups == "after others":
        made = [dist.new_group([0]), dist.new_group(list(range(scenario.world_size)))]
    try:
        yield
    finally:
        for group in made:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)


def options(rank: Rank, scenario: Scenario, net: ScenarioNet) -> dict[str, Any]:
    """What ``fully_shard`` is given besides modules; what is left at its default is not given."""
    found, subject = dict[str, Any](mesh=mesh_of(rank, scenario)), rank.implementation
    if scenario.reshard in RESHARD:
        found["reshard_after_forward"] = RESHARD[scenario.reshard]
    if scenario.rows == "columns" or scenario.parallelism == "two meshes":
        found["shard_placement_fn"] = placing(rank, scenario, net)
    if scenario.policy:
        found["mp_policy"] = subject.mixed_precision_policy(**scenario.policy)
    if scenario.offload == "cpu":
        found["offload_policy"] = offload_policy(rank)
    return found


def placing(rank: Rank, scenario: Scenario, net: ScenarioNet) -> Callable[[nn.Parameter], Any]:
    """A function that says of a parameter along which dim it is cut, and over which mesh if not over the module's."""
    subject, names = rank.implementation, {parameter: name for name, parameter in net.named_parameters()}
    flat = subject.shard_mesh_info(rank.mesh()) if scenario.parallelism == "two meshes" else None

    def place(parameter: nn.Parameter) -> Any:
        name = names[parameter]
        cut = Shard(scenario.cut_dim(name, tuple(parameter.shape)))
        return subject.shard_placement_result(cut, flat) if scenario.is_flat(name) else cut

    return place


def apply(rank: Rank, scenario: Scenario, net: ScenarioNet) -> Any:
    """Recompute and shard as the scenario says, in the order in which a user does."""
    subject = rank.implementation
    if scenario.modules not in AFTERWARDS:
        change(net, scenario.modules)
    net.recompute(scenario.recompute)
    if scenario.tp > 1:
        layers = {"first": ColwiseParallel(), "second": RowwiseParallel()}
        parallelize_module(net.get_submodule(MIDDLE), mesh_of_all(rank, scenario)["tp"], layers)
    given = options(rank, scenario, net)
    for block in dict.fromkeys(net.blocks) if scenario.recompute == "block" else ():
        subject.checkpoint(block)
    for names in plan(scenario.wrapping):
        modules = [net.get_submodule(name) for name in names]
        subject.fully_shard(modules if len(modules) > 1 else modules[0], **given)
    if scenario.runs == "method":
        subject.register_forward_method(net.get_submodule(MIDDLE), "halved")
    if scenario.modules in AFTERWARDS:
        change(net, scenario.modules)
    return net


class ShardedScenario(Sharded):
    """The net of a scenario, on one rank."""

    def made(self) -> Any:
        """The net, sharded, with the scenario's numbers however they come into it."""
        scenario, own = self.case, self.case.torch_dtype
        if scenario.life == "meta":
            with torch.device("meta"):
                net = apply(self.rank, scenario, scenario.build_in(own, other=1))
            net.to_empty(device="cpu" if scenario.offload == "cpu" else self.rank.device)
        else:
            start = scenario.build_in(scenario.born or own, other=int(scenario.life == "loaded"))
            net = apply(self.rank, scenario, start.to(self.rank.device))
            net = net.to(own) if scenario.life == "converted" else net
        if scenario.life in ("meta", "loaded"):
            self.fill(net, scenario.build_in(own))
        return net

    def places(self) -> list[str]:
        """The first module of each call."""
        return [names[0] for names in plan(self.case.wrapping)]

    def move(self, _: str) -> None:
        """To the CPU and back."""
        self.net.cpu()
        self.net.to(self.rank.device)

    def fill(self, net: Any, full: ScenarioNet) -> None:
        """Give a net the numbers of another, whose buffers are not loaded into a net from meta."""
        self.rank.implementation.state_dicts.set_model_state_dict(net, full.state_dict(), options=FORMS["full"])
        with torch.no_grad():
            for buffer, wanted in zip(net.buffers(), full.buffers(), strict=True):
                buffer.copy_(wanted)


def play(rank: Rank, scenario: Scenario) -> list[State]:
    """Do all actions; what could be seen after each."""
    with other_groups(scenario):
        return played_on(ShardedScenario(rank, scenario))
