"""A scenario on ranks: how the net is sharded, what is done, and all that can be seen after each action."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard

from harness.worlds.rank import Rank
from suites.interactions import optimizers
from suites.interactions.bodies import BLOCKS, ScenarioNet, born, build, inputs, loss
from suites.interactions.scenario import Scenario
from suites.interactions.script import CLIP, FACTOR, MIDDLE, interrupted, script, shown
from suites.interactions.wrapping import Layout, plan
from suites.kit.layout import local
from suites.kit.programs import placement_words

State = dict[str, Any]
RESHARD = {"always": True, "never": False, "pairs": 2}
FORMS = {
    "sharded": StateDictOptions(),
    "full": StateDictOptions(full_state_dict=True),
    "rank zero": StateDictOptions(full_state_dict=True, cpu_offload=True),
}


def mesh_of(rank: Rank, scenario: Scenario) -> DeviceMesh:
    """The mesh, made anew or from a group that there is; after other groups if that is asked for."""
    if scenario.groups == "from group":
        group = rank.group(range(scenario.world_size))
        assert group is not None
        return DeviceMesh.from_group(group, rank.device.type)
    return rank.mesh(scenario.axes, ("replicate", "shard")[-len(scenario.axes) :])


@contextmanager
def other_groups(scenario: Scenario) -> Iterator[None]:
    """Have some ranks made groups before, which end with the scenario: later ones depend on what each rank has made."""
    made = []
    if scenario.groups == "after others":
        made = [dist.new_group([0]), dist.new_group(list(range(scenario.world_size)))]
    yield
    for group in made:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def options(rank: Rank, scenario: Scenario) -> State:
    """What ``fully_shard`` is given besides modules; what is left at its default is not given."""
    found, subject, layout = State(mesh=mesh_of(rank, scenario)), rank.implementation, Layout(scenario)
    if scenario.reshard in RESHARD:
        found["reshard_after_forward"] = RESHARD[scenario.reshard]
    if scenario.rows == "columns":
        found["shard_placement_fn"] = lambda parameter: Shard(layout.dim(tuple(parameter.shape)))
    if scenario.policy:
        assert subject.mixed_precision_policy is not None
        found["mp_policy"] = subject.mixed_precision_policy(**scenario.policy)
    if scenario.offload == "cpu":
        assert subject.cpu_offload_policy is not None
        found["offload_policy"] = subject.cpu_offload_policy(pin_memory=False)
    return found


def apply(rank: Rank, scenario: Scenario, net: ScenarioNet) -> Any:
    """Recompute, shard, and set whatever the scenario says, in the order in which a user does."""
    subject, given = rank.implementation, options(rank, scenario)
    net.recompute(scenario.recompute)
    for name in BLOCKS if scenario.recompute == "block" else ():
        block = net.get_submodule(name)
        if name != BLOCKS[-1] or scenario.wrapping != "shared":
            assert subject.checkpoint is not None
            subject.checkpoint(block)
    assert subject.fully_shard is not None
    for names in plan(scenario):
        modules = [net.get_submodule(name) for name in names]
        subject.fully_shard(modules if len(modules) > 1 else modules[0], **given)
    if scenario.runs == "method":
        assert subject.register_forward_method is not None
        subject.register_forward_method(net.get_submodule(MIDDLE), "halved")
    settings(scenario, net)
    return net


def settings(scenario: Scenario, net: Any) -> None:
    """What is set on the sharded net before it runs."""
    wrapped = [net.get_submodule(names[0]) for names in plan(scenario)[:-1]]
    for one, other in pairwise(wrapped):
        if scenario.prefetch in ("forward", "both"):
            one.set_modules_to_forward_prefetch([other])
        if scenario.prefetch in ("backward", "both"):
            other.set_modules_to_backward_prefetch([one])
    if scenario.gradients == "factor":
        for name in ("", *(names[0] for names in plan(scenario))):
            net.get_submodule(name).set_gradient_divide_factor(FACTOR)
    if scenario.gradients == "sums":
        net.set_force_sum_reduction_for_comms(True)
    if scenario.gradients == "unused reduced":
        net.set_reduce_scatter_unused_params(True)
    if scenario.groups == "separate":
        net.set_separate_reduce_scatter_group(True)


class Sharded:
    """A sharded net in the middle of a scenario, on one rank. Optimizers hold the sharded parameters."""

    def __init__(self, rank: Rank, scenario: Scenario) -> None:
        self.rank, self.scenario = rank, scenario
        self.net = self.made()
        self.held: dict[str, Any] = dict(self.net.named_parameters())
        self.optimizer = optimizers.optimizer(scenario, self.held)
        self.batches = 0
        self.losses: list[Tensor] = []
        self.saved: tuple[State, State | None] = ({}, None)
        if scenario.gradients == "hooks":
            self.step_in_backward()

    def made(self) -> Any:
        """The net, sharded, with the scenario's numbers however they come into it."""
        scenario, life = self.scenario, self.scenario.life
        full = build(scenario, scenario.storage, born(scenario))
        if life == "meta":
            with torch.device("meta"):
                net = apply(self.rank, scenario, build(scenario, scenario.storage))
            net.to_empty(device="cpu" if scenario.offload == "cpu" else self.rank.device)
        else:
            start = build(scenario, born(scenario) or scenario.storage, other=int(life == "loaded"))
            net = apply(self.rank, scenario, start.to(self.rank.device))
            net = net.to(scenario.storage) if life == "converted" else net
        if life in ("meta", "loaded"):
            load_net(self.rank, net, full.state_dict(), FORMS["full"])
            with torch.no_grad():
                for buffer, wanted in zip(net.buffers(), full.buffers(), strict=True):
                    buffer.copy_(wanted)
        return net

    def step_in_backward(self) -> None:
        """Have each parameter take its step as soon as its gradient is there."""
        for name, parameter in self.held.items():
            own = optimizers.optimizer(self.scenario, {name: parameter})
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(_step_and_forget, own))

    def do(self, action: str, shown: Collection[str]) -> State:
        """Do an action; what can be seen then."""
        verb, _, what = action.partition(" ")
        found = getattr(self, verb)(what) or {}
        return {"found": found, **{name: getattr(self, f"see_{name}")() for name in shown}}

    # What can be seen at any time.

    def see_parameters(self) -> State:
        """This rank's parts of all parameters."""
        return {name: local(p) for name, p in self.held.items()}

    def see_gradients(self) -> State:
        """Those of gradients, None where there is none."""
        return {name: None if p.grad is None else local(p.grad) for name, p in self.held.items()}

    def see_optimizer(self) -> State:
        """Those of what the optimizer keeps."""
        kept = optimizers.kept(self.optimizer, self.held)
        return {name: {key: local(value) for key, value in each.items()} for name, each in kept.items()}

    def see_settings(self) -> list[State]:
        """Its parameter groups."""
        return optimizers.settings(self.optimizer)

    def see_facts(self) -> State:
        """What sharded parameters say of themselves."""
        return {name: facts(p) for name, p in self.held.items()}

    def see_buffers(self) -> State:
        """This rank's buffers."""
        return {name: local(buffer) for name, buffer in self.net.named_buffers()}

    # Forward and backward.

    def run(self) -> Any:
        """The outputs of the next batch."""
        batch = inputs(self.scenario, self.batches, self.rank.number, self.scenario.storage, self.rank.device)
        self.batches += 1
        return self.net(**batch)

    def forward(self, _: str) -> State:
        """The losses, one or two."""
        outputs = self.run()
        numbers = range(2 if self.scenario.gradients == "two losses" else 1)
        self.losses = [loss(self.scenario, outputs, self.batches - 1, self.rank.number, which) for which in numbers]
        return {"losses": [one.detach() for one in self.losses]}

    @torch.no_grad()
    def look(self, _: str) -> State:
        """The outputs, without gradients."""
        return {"outputs": self.run().clone()}

    def evaluate(self, _: str) -> State:
        """The same in eval mode."""
        self.net.eval()
        found = self.look("")
        self.net.train()
        return found

    def fail(self, _: str) -> None:
        """A forward that ends in the middle block, and what puts the net in order again."""
        with interrupted(self.net.get_submodule(MIDDLE)):
            self.run()
        self.net.reset_iter_state()

    def backward(self, which: str) -> None:
        """Through the losses of the last forward, or one of two."""
        self.losses[which == "second"].backward(retain_graph=which == "first")

    def defer(self, what: str) -> None:
        """Switch off reduction, or a part of it."""
        self.switch(what, False)

    def resume(self, what: str) -> None:
        """Switch it on again."""
        self.switch(what, True)

    def switch(self, what: str, value: bool) -> None:
        """Set what is named."""
        getattr(self.net, "set_is_last_backward" if what == "last" else f"set_requires_{what}")(value)

    def clip(self, _: str) -> State:
        """Clip gradients; their norm."""
        norm: Any = torch.nn.utils.clip_grad_norm_(self.held.values(), CLIP)
        return {"norm": norm.full_tensor() if isinstance(norm, DTensor) else norm}

    # Between passes.

    def step(self, _: str) -> None:
        """A step."""
        self.optimizer.step()

    def zero(self, _: str) -> None:
        """No gradients."""
        self.net.zero_grad()

    def vary(self, _: str) -> None:
        """Change what users may change in parameter groups."""
        optimizers.vary(self.optimizer)

    def freeze(self, module: str) -> None:
        """What is in a module trains no more."""
        self.net.get_submodule(module).requires_grad_(False)

    def thaw(self, module: str) -> None:
        """All that is in a module trains."""
        self.net.get_submodule(module).requires_grad_(True)

    def keep(self, _: str) -> None:
        """Free nothing after forward."""
        self.net.set_reshard_after_forward(False)

    def free(self, _: str) -> None:
        """Free all after forward."""
        self.net.set_reshard_after_forward(True)

    # State.

    def state(self, _: str) -> State:
        """The state of the net in the form that is asked for, and that of the optimizer once it has any."""
        given, states = FORMS[self.scenario.form], self.rank.implementation.state_dicts
        net = states.get_model_state_dict(self.net, options=given)
        optimizer = None
        if self.optimizer.state:
            optimizer = states.get_optimizer_state_dict(self.net, self.optimizer, options=given)
        self.saved = each_copied(net), each_copied(optimizer)
        return {"net": {name: local(value) for name, value in net.items()}}

    def load(self, _: str) -> None:
        """Give net and optimizer what was asked for last."""
        given, states = FORMS[self.scenario.form], self.rank.implementation.state_dicts
        if self.scenario.form == "rank zero":
            given = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        load_net(self.rank, self.net, self.saved[0], given)
        if self.saved[1] is not None:
            lenient = replace(given, strict=False)  # what had no gradient yet has no state
            states.set_optimizer_state_dict(self.net, self.optimizer, self.saved[1], options=lenient)


def load_net(rank: Rank, net: nn.Module, state: State, given: StateDictOptions) -> None:
    """Give a net a state, in the form that the options name."""
    rank.implementation.state_dicts.set_model_state_dict(net, state, options=given)


def each_copied(value: Any) -> Any:
    """A state with every tensor copied: it outlasts training."""
    if isinstance(value, (list, tuple)):
        return [each_copied(item) for item in value]
    if isinstance(value, dict):
        return {key: each_copied(item) for key, item in value.items()}
    return value.detach().clone() if isinstance(value, Tensor) else value


def _step_and_forget(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    optimizer.step()
    parameter.grad = None


def facts(parameter: Any) -> State:
    """What a sharded parameter says of itself, and in which dtypes and where it and its gradient are."""
    if not isinstance(parameter, DTensor):
        return {"type": type(parameter).__name__}
    return {
        "shape": list(parameter.shape),
        "stride": list(parameter.stride()),
        "placements": [placement_words(each) for each in parameter.placements],
        "mesh": list(parameter.device_mesh.mesh.shape),
        "requires_grad": parameter.requires_grad,
        "dtype": str(parameter.dtype),
        "gradient": None if parameter.grad is None else str(parameter.grad.dtype),
    }


def play(rank: Rank, scenario: Scenario) -> list[State]:
    """Do all actions; what could be seen after each. What an action raises says which it was."""
    actions = script(scenario)
    with other_groups(scenario):
        net, seen = Sharded(rank, scenario), []
        for place, action in enumerate(actions):
            try:
                seen.append(net.do(action, shown(actions, place)))
            except Exception as error:
                error.args = (f"in action {place + 1}, {action}: {error}",)
                raise
    return seen
