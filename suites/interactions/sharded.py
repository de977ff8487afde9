"""A scenario on ranks: how the net is sharded, what is done, and all that can be seen after each action."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.interactions import optimizers
from suites.interactions.bodies import born, build, inputs, loss
from suites.interactions.scenario import Scenario
from suites.interactions.script import CLIP, INTERRUPTED, interrupted, script, shown
from suites.interactions.sharding import apply, other_groups
from suites.kit.layout import local
from suites.kit.programs import placement_words

State = dict[str, Any]
FORMS = {
    "sharded": StateDictOptions(),
    "full": StateDictOptions(full_state_dict=True),
    "rank zero": StateDictOptions(full_state_dict=True, cpu_offload=True),
}


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
        with interrupted(self.net.get_submodule(INTERRUPTED)):
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
