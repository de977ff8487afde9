"""Training where not all parameters are alike: frozen, tied or ignored ones.

On two ranks with gradients 1 and 3 a trainable parameter's gradient is 2 on both; a frozen one has none; an ignored one
has 1 on rank 0 and 3 on rank 1, full on both, so that from the second step ranks compute with different values of it.

[Note: exact steps]
In float64 two linear layers, or one MLP, of dim at most 5 and multiplier at most 3 are exact for three steps: weights
are multiples of 2**-5 after one step and of 2**-10 after two, activations multiples of 2**-20 and, with weights below
2**8, losses below 2**30. If each module is called twice, so that a net is as deep as two MLPs, two steps are exact, as
the first note of ``tolerance.py`` says; and so they are with tied weights, whose gradients are sums of two.
Imports no ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from suites.kit.cases import Stack, fill
from suites.kit.trees import share
from suites.parameters.apart import ApartCase


@dataclass(frozen=True)
class ParameterCase(ApartCase):
    """Training with parameters that are frozen, tied or ignored.

    ``frozen`` are the names that have no gradient, step by step; before sharding those of the first step, unless
    ``late``. In ``silent`` steps there is a forward without gradients first. Each module runs as ``calls`` says: once
    for every entry, recorded or not. ``tied`` are pairs of names, the first holding what the second holds. ``grouped``
    modules are sharded as one list.
    """

    frozen: tuple[tuple[str, ...], ...] = ()
    late: bool = False
    silent: tuple[int, ...] = ()
    recomputed: bool = False
    calls: tuple[bool, ...] = (True,)
    tied: tuple[tuple[str, str], ...] = ()
    grouped: bool = False
    ignored: tuple[str, ...] = ()

    def build(self) -> nn.Sequential:
        """The net with its ties, and weights drawn from the seed; nothing is frozen yet."""
        net = Calling(self.net, self.calls, self.recomputed).to(self.torch_dtype)
        for place, source in self.tied:
            share(net, place, source)
        fill(net, self.seed, self.exact)
        return net

    def build_value(self, value: int) -> nn.Sequential:
        """What is ignored starts alike on all ranks."""
        return self.build()

    def is_apart(self, name: str) -> bool:
        """What is ignored is every rank's own."""
        return name in self.ignored

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net recomputes nothing."""
        vars(net)["recomputed"] = False
        return net

    @property
    def actions(self) -> tuple[str, ...]:
        """Steps, before each of which something may be frozen or thawed, and run without gradients."""
        return tuple(action for step in range(self.steps) for action in self.step(step))

    def step(self, step: int) -> Iterator[str]:
        """One of them; where all is frozen there is no backward, so that nothing reshards by itself."""
        before, frozen = (
            set(self.frozen[place]) if self.frozen and place >= 0 else set() for place in (step - 1, step)
        )
        yield from (f"thaw {name}" for name in sorted(before - frozen))
        yield from (f"freeze {name}" for name in sorted(frozen - before))
        if step in self.silent:
            yield from ("look", "reshard")
        trains = any(name not in frozen for name, _ in self.build().named_parameters())
        yield from ("forward", "backward" if trains else "reshard", "step", "drop")


class Calling(nn.Sequential):
    """Modules one after the other, each called as often as ``calls`` has entries, and recorded where they are true."""

    def __init__(self, net: Stack, calls: tuple[bool, ...], recomputed: bool) -> None:
        super().__init__(*net.build())
        self.calls, self.recomputed = calls, recomputed

    def forward(self, x: Tensor) -> Tensor:
        """An unrecorded call adds to what it is given, so that gradients go on past it."""
        for module in self:
            for recorded in self.calls:
                if recorded:
                    x = checkpoint(module, x, use_reentrant=False) if self.recomputed else module(x)
                else:
                    with torch.no_grad():
                        more = module(x)
                    x = x + more
        return x
