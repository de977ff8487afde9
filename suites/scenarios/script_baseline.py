"""What a script does to the unsharded model: all ranks' batches, one net. Imports no ``torch.distributed``.

Two ranks whose forwards will give gradients 1 and 3, and then 5 and 7::

    accumulate             no gradient yet, on any rank
    forward, backward      the mean of all: (1 + 5) / 2 + (3 + 7) / 2 = 8

What a rank must show after an act is that rank's part of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.data.comparison import Allowance, exact
from suites.generated.net_baseline import copies, one_thread
from suites.generated.net_tolerance import magnified
from suites.generated.nets import tensors_in
from suites.scenarios.script_acts import Play
from suites.scenarios.script_net import TrainedNet
from suites.scenarios.scripts import ScriptCase

#: What one act has led to, by what it is about.
Entry = dict[str, Any]


class Unsharded(TrainedNet):
    """The unsharded model in the middle of a script. ``magnitudes`` are those of gradients before they are averaged."""

    def __init__(self, case: ScriptCase, dtype: torch.dtype) -> None:
        self.case, self.dtype, self.play = case, dtype, Play(case)
        self.magnitudes: list[tuple[str, Tensor]] = []
        self.saved: tuple[Entry, Entry] = ({}, {})
        self.batches = 0
        self.renew()

    def renew(self) -> None:
        """A new net and a new optimizer."""
        self.net = self.case.build(self.dtype)
        self.optimizer = self.case.optimizer(self.net.parameters())
        self.buffers = [copies(self.net.named_buffers()) for _ in range(self.case.world_size)]
        self.pending: list[dict[str, Tensor]] = []
        self.unreduced: dict[str, Tensor] = {}

    def do(self, act: str) -> Entry:
        """Do an act; all that can be seen then."""
        kind, _, what = act.partition(" ")
        self.play.do(act)
        found = getattr(self, kind, self.nothing)(what)
        return {**self.state(), "found": found or [{}] * self.case.world_size}

    def state(self) -> Entry:
        """All that can be seen at any time."""
        named = dict(self.net.named_parameters())
        full = copies(named.items())
        return {
            "parameters": full,
            "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in named.items()},
            "momentum": copies(momenta(self.optimizer, named).items()),
            "flags": {name: p.requires_grad for name, p in named.items()},
            "rate": self.optimizer.param_groups[0]["lr"],
            "buffers": list(self.buffers),
            "registered": self.play.registered(),
            "whole": {name: full[name] for name in self.play.readable()},
        }

    # The acts.

    def nothing(self, _: str) -> None:
        """Gathering and freeing are nothing to a net that is whole."""

    def forward(self, _: str) -> list[Entry]:
        """Every rank's loss; gradients are worked out at once, and kept for backward."""
        named = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        total = {name: torch.zeros_like(p) for name, p in named.items()}
        size = {name: torch.zeros_like(p) for name, p in named.items()}
        found = []
        for rank in range(self.case.world_size):
            loss, _ = self.run(rank)
            for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
                total[name] += gradient / self.case.world_size
                size[name] += gradient.abs() / self.case.world_size
            found.append({"loss": loss.detach(), "dtype": f"torch.{self.case.computed or self.case.dtype}"})
        self.magnitudes += size.items()
        self.batches += 1
        self.pending.append(total)
        return found

    def run(self, rank: int) -> tuple[Tensor, Any]:
        """One rank's next batch: its loss and outputs."""
        for name, buffer in self.net.named_buffers():
            buffer.copy_(self.buffers[rank][name])
        outputs = self.net(**self.case.inputs(self.batches, rank, 0, self.dtype))
        self.buffers[rank] = copies(self.net.named_buffers())
        return self.case.loss(outputs, self.batches, rank, 0), outputs

    @torch.no_grad()
    def look(self, _: str) -> list[Entry]:
        """Every rank's outputs."""
        runs = [self.run(rank)[1] for rank in range(self.case.world_size)]
        self.batches += 1
        return [{"outputs": [each.clone() for each in tensors_in(outputs)]} for outputs in runs]

    def evaluate(self, _: str) -> list[Entry]:
        """The same in eval mode."""
        self.net.eval()
        found = self.look("")
        self.net.train()
        return found

    def backward(self, which: str) -> None:
        """Add to gradients what a forward, or all, have kept for it, and whatever was not reduced."""
        taken = self.pending if which == "all" else [self.pending.pop(0 if which == "oldest" else -1)]
        for gradients in [self.unreduced, *taken]:
            for name, gradient in gradients.items():
                parameter = self.net.get_parameter(name)
                parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
        self.unreduced = {}
        self.pending = [] if which == "all" else self.pending

    def accumulate(self, _: str) -> list[Entry]:
        """A forward, and a backward that adds to what is not reduced."""
        found = self.forward("")
        for name, gradient in self.pending.pop().items():
            self.unreduced[name] = self.unreduced[name] + gradient if name in self.unreduced else gradient
        return found

    def clip(self, most: str) -> list[Entry]:
        """Clip gradients; their norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), float(most))
        return [{"norm": norm}] * self.case.world_size

    def save(self, _: str) -> list[Entry]:
        """Keep the state of net and optimizer."""
        state = copies(self.net.state_dict().items())
        self.saved = (state, copy.deepcopy(self.optimizer.state_dict()))
        return [{"sharded": state, "full": state}] * self.case.world_size

    def load(self, _: str) -> None:
        """Give the net its state back."""
        self.net.load_state_dict(self.saved[0])

    def recall(self, _: str) -> None:
        """Give the optimizer its state back."""
        self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))

    def restart(self, _: str) -> None:
        """A new net and a new optimizer with the same state."""
        self.renew()
        self.load("")
        self.recall("")


def momenta(optimizer: Any, named: dict[str, Any]) -> dict[str, Any]:
    """What the optimizer keeps of each of these parameters of which it keeps something."""
    kept = {name: optimizer.state[p].get("momentum_buffer") for name, p in named.items() if p in optimizer.state}
    return {name: value for name, value in kept.items() if value is not None}


@dataclass(frozen=True)
class Expected:
    """What every act of a script must lead to, and how far off it may be."""

    case: ScriptCase
    entries: list[Entry]
    within: Allowance

    def on_rank(self, place: int, rank: int) -> Entry:
        """What one rank must show after one act: its own parts, and what is its alone."""
        entry = self.entries[place]
        found = entry["found"][rank]
        return {
            **entry,
            **{name: self.parts(entry[name], rank) for name in ("parameters", "gradients", "momentum")},
            "buffers": entry["buffers"][rank],
            "found": {**found, "sharded": self.parts(found["sharded"], rank)} if "sharded" in found else found,
        }

    def parts(self, tensors: dict[str, Any], rank: int) -> dict[str, Any]:
        """A rank's parts of full tensors."""
        return {name: None if full is None else self.case.part(rank, full) for name, full in tensors.items()}


def expected(case: ScriptCase) -> Expected:
    """Play the script in float64; unless it is exact, once more in float32, to see how it magnifies roundings."""
    entries, magnitudes = played(case, torch.float64)
    if case.exact:
        return Expected(case, entries, exact)
    rounded, _ = played(case, torch.float32)
    return Expected(case, entries, magnified(case, tensors_of(rounded), tensors_of(entries), magnitudes))


def played(case: ScriptCase, dtype: torch.dtype) -> tuple[list[Entry], list[tuple[str, Tensor]]]:
    """What every act leads to, with full tensors; and the magnitudes of gradients."""
    with one_thread():
        model = Unsharded(case, dtype)
        return [model.do(act) for act in case.acts], model.magnitudes


def tensors_of(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All floating tensors of a tree with the last key on the way to each."""
    if isinstance(tree, Tensor):
        yield from [(name, tree)] if tree.is_floating_point() else []
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from tensors_of(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from tensors_of(value, name)
