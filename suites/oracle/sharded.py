"""A situation on ranks: what is done to a sharded net, action by action, and all that can be seen after each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.utils._pytree import tree_map_only

from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.oracle.facts import facts
from suites.oracle.layout import is_dtensor, seen
from suites.oracle.situation import UNDER_WAY, tensors_in
from suites.oracle.telling import Told
from suites.oracle.training import interrupted, kept, taken, vary

State = dict[str, Any]
FORMS = {
    "sharded": StateDictOptions(),
    "full": StateDictOptions(full_state_dict=True),
    "rank zero": StateDictOptions(full_state_dict=True, cpu_offload=True),
}
#: How each of them is given back.
TO_LOAD = {**FORMS, "rank zero": StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)}


class Sharded(Told):
    """A sharded net in the middle of a script, on one rank.

    ``options`` are what ``fully_shard`` is given besides what the case says.
    Optimizers hold the sharded parameters, whatever is registered: so values and gradients are looked up there.
    """

    def __init__(self, rank: Rank, case: Any, **options: Any) -> None:
        self.rank, self.case, self.options = rank, case, options
        self.place: int = case.data_rank(rank.number)
        self.batches = 0
        self.saved: Any = {}
        self.own: list[torch.optim.Optimizer] = []
        self.take(self.made())
        if case.steps_in_backward:
            self.step_in_backward()

    @classmethod
    def play(cls, rank: Rank, case: Any) -> list[State]:
        """A program: do all actions; what could be seen after each."""
        return played_on(cls(rank, case))

    @classmethod
    def seen(cls, rank: Rank, case: Any, acts: Sequence[str], *looks: str) -> State:
        """A program: do these actions; what the last of them gives, and what can then be seen."""
        net, (*before, last) = cls(rank, case), acts or ("wait",)
        net.do_all(before)
        return net.do(last, looks)

    @abstractmethod
    def made(self) -> Any:
        """The net, sharded, with the numbers of the case."""

    def take(self, net: Any) -> None:
        """Go on with this net, and a new optimizer."""
        self.net = net
        self.hold()
        self.pending: list[list[list[Tensor]]] = []
        self.handles: list[Any] = []

    def hold(self) -> None:
        """Train what is registered now, by a new optimizer."""
        self.held: dict[str, Any] = dict(self.net.named_parameters())
        self.optimizer = self.case.optimizer_of(self.held)

    def step_in_backward(self) -> None:
        """Have each parameter take its step as soon as its gradient is there."""
        for name, parameter in self.held.items():
            own = self.case.optimizer_of({name: parameter})
            self.own.append(own)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(_step_and_forget, own))

    def do(self, action: str, shown: Collection[str]) -> State:
        """Do an action; what can be seen then."""
        found = self.act(action)
        hidden = UNDER_WAY if self.is_under_way else ()
        return {"found": found, **{name: getattr(self, f"see_{name}")() for name in shown if name not in hidden}}

    def act(self, action: str) -> State:
        """Do an action; what it gives."""
        verb, _, what = action.partition(" ")
        return getattr(self, verb)(what) or {}

    def do_all(self, actions: Iterable[str]) -> None:
        """Do some actions, of which nothing is to be seen."""
        for action in actions:
            self.do(action, ())

    # What can be seen at any time.

    def looked_up(self) -> dict[str, Any]:
        """The parameters whose values and gradients are looked at."""
        return self.held

    def see_parameters(self) -> State:
        """This rank's parts of all parameters."""
        return {name: seen(p) for name, p in self.looked_up().items()}

    def gradients(self) -> State:
        """Their gradients, None where there is none."""
        return {name: p.grad for name, p in self.looked_up().items()}

    def parts_of(self, gradients: State) -> State:
        """This rank's parts of gradients."""
        return {name: None if grad is None else seen(grad, self.held[name]) for name, grad in gradients.items()}

    def see_optimizer(self) -> State:
        """Those of what the optimizer keeps."""
        found = kept(self.optimizer, self.held)
        return {name: {key: seen(one, self.held[name]) for key, one in each.items()} for name, each in found.items()}

    def see_facts(self) -> State:
        """What sharded parameters say of themselves."""
        return {name: facts(p) for name, p in self.held.items()}

    def see_buffers(self) -> State:
        """This rank's buffers."""
        return {name: buffer.detach().clone() for name, buffer in self.net.named_buffers()}

    def see_dtypes(self) -> State:
        """The dtype of every parameter and buffer."""
        return {name: str(tensor.dtype) for name, tensor in [*self.held.items(), *self.net.named_buffers()]}

    def see_registered(self) -> State:
        """How each parameter is registered, whether it trains, and if it is whole what it is."""
        asks_for(Feature.PLAIN_FORWARD)
        return {
            name: {
                "form": "sharded" if is_dtensor(p) else "whole",
                "trains": p.requires_grad,
                "value": None if is_dtensor(p) else p.detach().clone(),
            }
            for name, p in self.net.named_parameters()
        }

    # Forward and backward.

    def run(self, module: str = "") -> Any:
        """The outputs of the next batch, of the net or of a module alone."""
        self.batches += 1
        net = self.case.alone(self.net, module)
        return self.case.run(net, self.batches - 1, self.place, self.case.torch_dtype, device=self.rank.device)

    def losses(self, module: str = "") -> list[Tensor]:
        """Those of the next batch."""
        outputs = self.run(module)
        found: list[Tensor] = self.case.losses(outputs, self.batches - 1, self.place)
        return found

    def forward(self, module: str) -> State:
        """A forward that waits for its backward; its losses."""
        losses = self.losses(module)
        self.pending.append([losses])
        return {"losses": [one.detach() for one in losses]}

    @torch.no_grad()
    def look(self, module: str) -> State:
        """The outputs, without gradients."""
        return {"outputs": [each.clone() for each in tensors_in(self.run(module))]}

    def evaluate(self, module: str) -> State:
        """The same in eval mode."""
        self.net.eval()
        found = self.look(module)
        self.net.train()
        return found

    def fail(self, what: str) -> State:
        """A pass that ends in a module, and what puts the net in order again."""
        found = interrupted(self.net, what, self.losses)
        self.net.reset_iter_state()
        return found

    def backward(self, which: str) -> None:
        """Through one forward's losses, or one of two, or all forwards' at once."""
        losses = [forward[0][which == "second"] for forward in taken(self.pending, which)]
        total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        total.backward(retain_graph=which == "first")
        self.is_under_way |= self.finalizes_manually

    def finalize(self, when: str) -> None:
        """End what backwards have begun, at once or ``later``, by a handle to ``wait`` for."""
        asks_for(Feature.MANUAL_FINALIZATION)
        handle = self.net.finalize_backward(async_op=when == "later")
        self.handles += [] if handle is None else [handle]
        self.is_under_way = when == "later"

    def reset(self, _: str) -> None:
        """Put the net in order, whatever is under way."""
        asks_for(Feature.RESET)
        self.net.reset_iter_state()

    def vary(self, _: str) -> None:
        """Change the settings of all optimizers."""
        super().vary("")
        for optimizer in self.own:
            vary(optimizer)

    def clip(self, most: str) -> State:
        """Clip gradients; their norm."""
        asks_for(Feature.DTENSORS)  # else torch would take the norm of this rank's parts
        norm: Any = torch.nn.utils.clip_grad_norm_(self.held.values(), float(most))
        return {"norm": norm.full_tensor() if hasattr(norm, "full_tensor") else norm}

    # Gathering and freeing.

    def unshard(self, module: str) -> None:
        """Unshard explicitly."""
        asks_for(Feature.UNSHARD)
        self.net.get_submodule(module).unshard()

    def begin(self, module: str) -> None:
        """Unshard explicitly, and wait later."""
        asks_for(Feature.UNSHARD)
        self.handles.append(self.net.get_submodule(module).unshard(async_op=True))

    def wait(self, _: str) -> None:
        """Wait for all that was begun, be it used up already or not."""
        for handle in self.handles:
            handle.wait()
        self.handles = []
        self.is_under_way = False

    def reshard(self, _: str) -> None:
        """Reshard everything explicitly."""
        asks_for(Feature.UNSHARD)
        for module in self.net.modules():
            if hasattr(module, "reshard"):
                module.reshard()

    # State.

    def save(self, form: str) -> State:
        """The state of the net in a form, and that of the optimizer once it has any; both are kept."""
        given, states = FORMS[form], self.rank.implementation.state_dicts
        net = states.get_model_state_dict(self.net, options=given)
        optimizer = None
        if self.optimizer.state:
            optimizer = states.get_optimizer_state_dict(self.net, self.optimizer, options=given)
        self.saved = tree_map_only(Tensor, lambda each: each.detach().clone(), (net, optimizer))
        return {form: {name: seen(value) for name, value in net.items()}}

    def load(self, form: str) -> None:
        """Give the net what was kept."""
        self.rank.implementation.state_dicts.set_model_state_dict(self.net, self.saved[0], options=TO_LOAD[form])

    def recall(self, form: str) -> None:
        """Give the optimizer what was kept of it, if that is anything."""
        if self.saved[1] is not None:
            lenient = replace(TO_LOAD[form], strict=False)  # what had no gradient yet has no state
            states = self.rank.implementation.state_dicts
            states.set_optimizer_state_dict(self.net, self.optimizer, self.saved[1], options=lenient)


class Resting(Sharded):
    """A net that is sharded whenever it is looked at: what is registered then must be what the optimizer holds."""

    def looked_up(self) -> dict[str, Any]:
        """What is registered."""
        return dict(self.net.named_parameters())


def _step_and_forget(optimizer: torch.optim.Optimizer, parameter: Tensor) -> None:
    optimizer.step()
    parameter.grad = None


def played_on(net: Sharded) -> list[State]:
    """Do all actions; what could be seen after each. What an action raises says which it was."""
    seen = []
    for place, action in enumerate(net.case.actions):
        try:
            seen.append(net.do(action, net.case.shown(place)))
        except Exception as error:
            error.args = (f"in action {place + 1}, {action}: {error}",)
            raise
    return seen
