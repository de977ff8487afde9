"""The unsharded model in a scenario: one copy for each rank's batches, and one that is trained by their mean.

Two ranks with gradients 1 and 3 give the mean 2 after every backward that reduces; until then each copy keeps its own.
Imports no ``torch.distributed``.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from suites.generated.net_baseline import copies, one_thread
from suites.interactions import optimizers
from suites.interactions.bodies import born, build, inputs, loss
from suites.interactions.low_precision import compute_in
from suites.interactions.scenario import Scenario
from suites.interactions.script import CLIP, FACTOR, INTERRUPTED, interrupted, script, shown
from suites.interactions.wrapping import plan

State = dict[str, Any]


class Unsharded:
    """``working`` rounds as ranks do, in the scenario's dtypes (float32 stands in for float64); else all is float64.

    ``magnitudes`` are of gradients before they are averaged.
    """

    def __init__(self, scenario: Scenario, working: bool) -> None:
        self.scenario = scenario
        storage = torch.float32 if scenario.storage == torch.float64 else scenario.storage
        self.dtype = storage if working else torch.float64
        self.net = build(scenario, self.dtype, born(scenario))
        self.copies = [copy.deepcopy(self.net) for _ in range(scenario.world_size)]
        policy = scenario.policy if working else {}
        self.reduced_in = policy.get("reduce_dtype") or policy.get("param_dtype") or self.dtype
        for net in self.copies:
            net.recompute({"block": "around"}.get(scenario.recompute, scenario.recompute))
            compute_in(policy, net, [name for names in plan(scenario) for name in names])
        self.named = dict(self.net.named_parameters())
        self.optimizer = optimizers.optimizer(scenario, self.named)
        self.batches, self.deferred = 0, ""
        self.losses: list[list[Tensor]] = []
        self.saved: Any = None
        self.magnitudes: list[tuple[str, Tensor]] = []

    def do(self, action: str, shown: Collection[str]) -> State:
        """Do an action; what must be seen then, of whole tensors. Buffers and ``found`` are by rank."""
        verb, _, what = action.partition(" ")
        found = getattr(self, verb, self.nothing)(what) or [{}] * self.scenario.world_size
        hidden = {"gradients", "facts"} if self.deferred == "last" else set()  # whether they are there yet is open
        return {"found": found, **{name: getattr(self, f"see_{name}")() for name in shown if name not in hidden}}

    # What can be seen at any time.

    def see_parameters(self) -> State:
        """All parameters."""
        return copies(self.named.items())

    def see_gradients(self) -> State:
        """All gradients, None where there is none."""
        return {name: None if p.grad is None else p.grad.clone() for name, p in self.named.items()}

    def see_optimizer(self) -> State:
        """What the optimizer keeps."""
        return copy.deepcopy(optimizers.kept(self.optimizer, self.named))

    def see_settings(self) -> list[State]:
        """Its parameter groups."""
        return optimizers.settings(self.optimizer)

    def see_facts(self) -> State:
        """What shapes parameters have, which of them train, and which have a gradient."""
        return {name: (p.detach(), p.requires_grad, p.grad is not None) for name, p in self.named.items()}

    def see_buffers(self) -> list[State]:
        """Each rank's buffers."""
        return [copies(net.named_buffers()) for net in self.copies]

    def nothing(self, _: str) -> None:
        """What concerns sharding alone changes nothing here."""

    # Forward and backward.

    def run(self, rank: int) -> Tensor:
        """The outputs of one rank's next batch."""
        return self.copies[rank](**inputs(self.scenario, self.batches, rank, self.dtype))  # type: ignore[no-any-return]

    def forward(self, _: str) -> list[State]:
        """Every rank's losses."""
        outputs = [self.run(rank) for rank in range(self.scenario.world_size)]
        numbers = range(2 if self.scenario.gradients == "two losses" else 1)
        self.losses = [
            [loss(self.scenario, each, self.batches, rank, which) for which in numbers]
            for rank, each in enumerate(outputs)
        ]
        self.batches += 1
        return [{"losses": [one.detach() for one in losses]} for losses in self.losses]

    @torch.no_grad()
    def look(self, _: str) -> list[State]:
        """Every rank's outputs, without gradients."""
        found = [{"outputs": self.run(rank)} for rank in range(self.scenario.world_size)]
        self.batches += 1
        return found

    def evaluate(self, _: str) -> list[State]:
        """The same in eval mode."""
        for net in self.copies:
            net.eval()
        found = self.look("")
        for net in self.copies:
            net.train()
        return found

    def fail(self, _: str) -> None:
        """A forward that ends in the middle block."""
        for rank, net in enumerate(self.copies):
            with interrupted(net.get_submodule(INTERRUPTED)):
                self.run(rank)
        self.batches += 1

    def backward(self, which: str) -> None:
        """Through the losses of the last forward, or one of two; then reduce, unless that is deferred."""
        for losses in self.losses:
            losses[which == "second"].backward(retain_graph=which == "first")
        if not self.deferred:
            self.reduce()
        if self.scenario.gradients == "hooks":
            self.step("")
            self.zero("")

    def defer(self, what: str) -> None:
        """Gradients stay each rank's own, or are not waited for."""
        self.deferred = what

    def resume(self, _: str) -> None:
        """The next backward reduces again."""
        self.deferred = ""

    def reduce(self) -> None:
        """Add the mean over ranks, or what is asked for instead, to the gradients of the trained model."""
        of_ranks = [dict(net.named_parameters()) for net in self.copies]
        for name, parameter in self.named.items():
            parts = self.parts(parameter, [named[name].grad for named in of_ranks])
            if parts:
                total = torch.stack(parts).sum(0).to(parameter.dtype)
                parameter.grad = total if parameter.grad is None else parameter.grad + total
                self.magnitudes.append((name, torch.stack(parts).abs().sum(0)))
        for net in self.copies:
            net.zero_grad()

    def parts(self, parameter: Tensor, gradients: list[Tensor | None]) -> list[Tensor]:
        """What the ranks add to a parameter's gradient; nothing if none of them has any."""
        divisor = FACTOR if self.scenario.gradients == "factor" else len(gradients)
        parts = [gradient.to(self.reduced_in) / divisor for gradient in gradients if gradient is not None]
        wanted = self.scenario.gradients == "unused reduced" and parameter.requires_grad
        return [torch.zeros_like(parameter)] if wanted and not parts else parts

    def clip(self, _: str) -> list[State]:
        """Clip gradients; their norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)
        return [{"norm": norm}] * self.scenario.world_size

    # Between passes.

    def step(self, _: str) -> None:
        """A step, of which every copy learns."""
        self.optimizer.step()
        self.share()

    @torch.no_grad()
    def share(self) -> None:
        """Give all copies the parameters of the trained model."""
        for net in self.copies:
            for name, parameter in net.named_parameters():
                parameter.copy_(self.named[name])

    def zero(self, _: str) -> None:
        """No gradients."""
        self.net.zero_grad()

    def vary(self, _: str) -> None:
        """Change what users may change in parameter groups."""
        optimizers.vary(self.optimizer)

    def freeze(self, module: str) -> None:
        """What is in a module trains no more."""
        for net in [self.net, *self.copies]:
            net.get_submodule(module).requires_grad_(False)

    def thaw(self, module: str) -> None:
        """All that is in a module trains."""
        for net in [self.net, *self.copies]:
            net.get_submodule(module).requires_grad_(True)

    def state(self, _: str) -> list[State]:
        """The state of the net, with each rank's own buffers, and that of the optimizer, kept for loading."""
        nets = [copies(net.state_dict().items()) for net in self.copies]
        self.saved = nets, copy.deepcopy(self.optimizer.state_dict())
        cut = [name for name, _ in self.net.named_parameters(remove_duplicate=False)]
        return [{"net": state, "cut": cut} for state in nets]

    def load(self, _: str) -> None:
        """Give net and optimizer what was kept; where only rank 0 has it, also its buffers to all."""
        nets, state = self.saved
        for rank, net in enumerate(self.copies):
            net.load_state_dict(nets[0 if self.scenario.form == "rank zero" else rank])
        self.net.load_state_dict(nets[0])
        if state["state"]:
            self.optimizer.load_state_dict(copy.deepcopy(state))


def played(scenario: Scenario, working: bool) -> tuple[list[State], list[tuple[str, Tensor]]]:
    """What every action leads to, with whole tensors; and the magnitudes of gradients."""
    actions = script(scenario)
    with one_thread():
        model = Unsharded(scenario, working)
        return [model.do(action, shown(actions, place)) for place, action in enumerate(actions)], model.magnitudes
