"""The unsharded model in a situation: one copy for each rank's batches, and one that is trained by their mean.

Two ranks with gradients 1 and 3 give the mean 2 after every backward that reduces; until then each copy keeps its own.
Imports no ``torch.distributed``.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from harness.vendor.bounds import averages
from suites.oracle.situation import UNDER_WAY, Situation, tensors_in
from suites.oracle.training import Trained, interrupted, kept, taken

State = dict[str, Any]


class Unsharded(Trained):
    """``working`` rounds as ranks do, in the situation's dtypes, see ``working_dtype``; else all is float64.

    ``magnitudes`` are of gradients before they are averaged.
    """

    def __init__(self, case: Situation, working: bool) -> None:
        self.case, self.working = case, working
        policy = case.policy if working else {}
        self.dtype = working_dtype(case) if working else torch.float64
        self.reduced_in = policy.get("reduce_dtype") or policy.get("param_dtype") or self.dtype
        self.batches = 0
        self.saved: Any = None
        self.magnitudes: list[tuple[str, Tensor]] = []
        self.renew()

    def renew(self) -> None:
        """A new net and a new optimizer."""
        self.net: Any = self.case.build_in(self.dtype)
        self.held = self.named = dict(self.net.named_parameters())
        self.spread(self.net)
        self.optimizer = self.case.optimizer_of(self.named)
        self.pending: list[list[list[Tensor]]] = []
        self.waiting: set[str] = set()  # parameters whose gradients stay each rank's own
        self.divisors: dict[str, float] = {}  # of parameters whose sums of gradients are divided by something else
        self.zeros = False  # whether parameters that train, and that no rank has used, have gradients of zero

    def spread(self, net: Any) -> None:
        """Give each rank a copy of its own."""
        self.copies: list[Any] = [
            self.case.prepared(copy.deepcopy(net), self.working) for _ in range(self.case.data_ranks)
        ]
        self.of_ranks = [dict(net.named_parameters()) for net in self.copies]

    def nets(self) -> list[Any]:
        """The one that is trained, and the ranks' own."""
        return [self.net, *self.copies]

    def do(self, action: str, shown: Collection[str]) -> State:
        """Do an action; what must be seen then, of whole tensors; buffers and ``found`` are by data rank."""
        verb, _, what = action.partition(" ")
        found = getattr(self, verb, self.nothing)(what) or [{}] * self.case.data_ranks
        hidden = UNDER_WAY if self.is_under_way else ()
        return {"found": found, **{name: getattr(self, f"see_{name}")() for name in shown if name not in hidden}}

    # What can be seen at any time.

    def see_parameters(self) -> State:
        """All parameters."""
        return copies(self.named.items())

    def reduced(self) -> list[tuple[str, Tensor]]:
        """The parameters of which no gradient waits to be reduced: where that is kept, and if it is seen, is open."""
        waiting = {name for own in self.of_ranks for name, p in own.items() if p.grad is not None}
        return [(name, p) for name, p in self.named.items() if name not in waiting]

    def gradients(self) -> State:
        """Those gradients, None where there is none."""
        return {name: None if p.grad is None else p.grad.clone() for name, p in self.reduced()}

    def see_optimizer(self) -> State:
        """What the optimizer keeps."""
        return {name: copies(each.items()) for name, each in kept(self.optimizer, self.named).items()}

    def see_dtypes(self) -> None:
        """They are those of the net as it was built."""

    def see_facts(self) -> State:
        """What shapes these parameters have, which of them train, and which have a gradient."""
        return {name: (p.detach(), p.requires_grad, p.grad is not None) for name, p in self.reduced()}

    def see_buffers(self) -> list[State]:
        """Each rank's buffers."""
        return [copies(net.named_buffers()) for net in self.copies]

    def nothing(self, _: str) -> None:
        """What concerns sharding alone changes nothing here."""

    # Forward and backward.

    def run(self, rank: int, module: str = "") -> Any:
        """The outputs of one rank's next batch, of the net or of a module alone."""
        return self.case.run(self.case.alone(self.copies[rank], module), self.batches, rank, self.dtype)

    def losses(self, rank: int, module: str = "") -> list[Tensor]:
        """Those of one rank's next batch."""
        found: list[Tensor] = self.case.losses(self.run(rank, module), self.batches, rank)
        return found

    def forward(self, module: str) -> list[State]:
        """Every rank's losses, which wait for their backward."""
        self.pending.append([self.losses(rank, module) for rank in range(self.case.data_ranks)])
        self.batches += 1
        return [{"losses": [one.detach() for one in losses]} for losses in self.pending[-1]]

    @torch.no_grad()
    def look(self, module: str) -> list[State]:
        """Every rank's outputs, without gradients."""
        found = [{"outputs": tensors_in(self.run(rank, module))} for rank in range(self.case.data_ranks)]
        self.batches += 1
        return found

    def evaluate(self, module: str) -> list[State]:
        """The same in eval mode."""
        for net in self.copies:
            net.eval()
        found = self.look(module)
        for net in self.copies:
            net.train()
        return found

    def fail(self, what: str) -> list[State]:
        """A pass that ends in a module."""
        found = [interrupted(net, what, partial(self.losses, rank)) for rank, net in enumerate(self.copies)]
        for net in self.copies:
            net.zero_grad()
        self.batches += 1
        return found

    def backward(self, which: str) -> None:
        """Through one forward's losses, or one of two, or all forwards'; then reduce, unless that is deferred."""
        for forward in taken(self.pending, which):
            for losses in forward:
                losses[which == "second"].backward(retain_graph=which == "first")
        self.reduce()
        self.is_under_way |= self.finalizes_manually
        if self.case.steps_in_backward:
            self.step("")
            self.drop("")

    def finalize(self, when: str) -> None:
        """Reduce all that may be reduced now, to be looked at now or later."""
        self.reduce()
        self.is_under_way = when == "later"

    def wait(self, _: str) -> None:
        """For what is to be looked at later."""
        self.is_under_way = False

    def defer(self, what: str) -> None:
        """Gradients stay each rank's own, all or those ``in`` one group, or are not waited for."""
        self.is_under_way |= what == "last"
        self.waiting |= self.those(what)

    def resume(self, what: str) -> None:
        """The next backward reduces them again."""
        self.is_under_way &= what != "last"
        self.waiting -= self.those(what)

    def those(self, what: str) -> set[str]:
        """The parameters whose gradients a setting keeps; before the last backward they are reduced all the same."""
        if what == "last":
            return set()
        setting, _, group = what.partition(" in ")
        return {name for name in self.inside(group) if setting != "all_reduce" or not self.case.is_flat(name)}

    def inside(self, group: str) -> list[str]:
        """The parameters of one group, or all."""
        return [name for name in self.named if not group or self.case.group_of(name) == group]

    def set(self, what: str) -> None:
        """What gradients are divided by, of one group, the root's, or ``in each``; zeros for what is not used."""
        super().set(what)
        setting, _, group = what.partition(" in ")
        name, value = setting.split()
        if name == "gradient_divide_factor":
            self.divisors |= dict.fromkeys(self.inside("" if group == "each" else group or "root"), float(value))
        elif name == "reduce_scatter_unused_params":
            self.zeros = value == "True"

    def reduce(self) -> None:
        """Add the mean over ranks, or what is asked for instead, to the gradients of the trained model."""
        reduced = {name: parameter for name, parameter in self.named.items() if name not in self.waiting}
        for name, parameter in reduced.items():
            parts = self.parts(name, [own[name].grad for own in self.of_ranks])
            if parts:
                total = reduce(torch.add, parts).to(parameter.dtype)  # which rounds each sum, as ranks do
                parameter.grad = total if parameter.grad is None else parameter.grad + total
                self.magnitudes.append((name, torch.stack(parts).abs().sum(0)))
                for hook in (parameter._post_accumulate_grad_hooks or {}).values():  # which autograd would call
                    hook(parameter)
            for own in self.of_ranks:
                own[name].grad = None

    def parts(self, name: str, gradients: list[Tensor | None]) -> list[Tensor]:
        """What the ranks add to a parameter's gradient; nothing if none of them has any."""
        parameter = self.named[name]
        divisor = self.case.divisor_of_sum(name)
        if averages():
            divisor = self.divisors.get(name) or self.case.divisor_of(name)
        parts = [gradient.to(self.reduced_in) / divisor for gradient in gradients if gradient is not None]
        wanted = self.zeros and parameter.requires_grad
        return [torch.zeros_like(parameter)] if wanted and not parts else parts

    def clip(self, most: str) -> list[State]:
        """Clip gradients; their norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), float(most))
        return [{"norm": norm}] * self.case.data_ranks

    # Between passes.

    def step(self, _: str) -> None:
        """A step, of which every copy learns."""
        super().step("")
        self.share()

    @torch.no_grad()
    def share(self) -> None:
        """Give all copies the parameters of the trained model."""
        for own in self.of_ranks:
            for name, parameter in own.items():
                parameter.copy_(self.named[name])

    def save(self, *forms: str) -> list[State]:
        """Keep the state of net and optimizer; that of the net, with each rank's own buffers, in these forms."""
        nets = [copies(net.state_dict().items()) for net in self.copies]
        self.saved = nets, copy.deepcopy(self.optimizer.state_dict())
        return [dict.fromkeys(forms, state) for state in nets]

    def load(self, _: str) -> None:
        """Give the net what was kept; where only rank 0 has it, also its buffers to all."""
        nets, _ = self.saved
        for rank, net in enumerate(self.copies):
            net.load_state_dict(nets[0 if self.case.state_of_rank_zero else rank])
        self.net.load_state_dict(nets[0])

    def recall(self, _: str) -> None:
        """Give the optimizer what was kept of it, if that is anything."""
        if self.saved[1]["state"]:
            self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))

    def restart(self, _: str) -> None:
        """A new net and a new optimizer with the same state."""
        self.renew()
        self.load("")
        self.recall("")


def working_dtype(case: Situation) -> torch.dtype:
    """The case's own dtype; unless all is exact, float32 stands in for float64, which would hide what it rounds."""
    own = case.torch_dtype
    return torch.float32 if own == torch.float64 and not case.exact else own


def played(case: Situation, working: bool = False, model: type[Unsharded] = Unsharded) -> list[State]:
    """What every action leads to, with whole tensors."""
    return played_with_sizes(case, working, model)[0]


def played_with_sizes(
    case: Situation, working: bool, model: type[Unsharded] = Unsharded
) -> tuple[list[State], list[tuple[str, Tensor]]]:
    """What every action leads to, with whole tensors; and the magnitudes of gradients."""
    with one_thread():
        net = model(case, working)
        return [net.do(action, case.shown(place)) for place, action in enumerate(case.actions)], net.magnitudes


@contextmanager
def one_thread() -> Iterator[None]:
    """Have operations run on the caller's thread alone: as on ranks, and on a busy machine ten times as fast."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def copies(named: Any) -> dict[str, Tensor]:
    """Tensors by name, copied."""
    return {name: tensor.detach().clone() for name, tensor in named}
