"""How much of the time of collectives must hide behind compute, from times alone. Imports no ``torch.distributed``.

Six blocks that compute for 8 ms each; a gather takes 4 ms, all of which two explicitly filled streams hide::

    quiet      6 x 8            = 48 ms    collectives take next to no time
    delayed    48 + 4           = 52 ms    all but the first gather run beside compute
    delayed    48 + 6 x 4       = 72 ms    one thing after the other
    allowed    48 + 6 x 4 - 5 x 4 / 2 = 62 ms

Derivation. Collectives add ``delayed - quiet`` to a pass: that part of them which nothing ran beside. Of ``made``
collectives of ``c`` ms each, ``alone`` have no compute that they could run beside: the first gather of a pass, and the
last reduction. Of each other one a device hides ``h`` ms, which is measured: two explicitly filled streams take
``together`` for a collective and the compute that it runs beside, so ``h = compute + c - together``. A subject
that hides all it can adds ``made c - (made - alone) h``; one that hides nothing adds ``made c``. Required is
half of what can be:

    delayed - quiet <= made c - (made - alone) h / 2

Right and wrong are each ``(made - alone) h / 2`` away from the bound: here 10 ms of 62. So neither the speed of a
device matters nor what hooks and launches cost, which is in ``quiet`` as well. Compute is twice as long as a
collective, so that one that starts late, or shares the device with another, can still be over in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harness.data.case import Case
from suites.kit.cases import draw, mixed

#: A device that hides less than this of a collective on its own does not run streams side by side.
BY_HAND = 0.5
#: How much longer than a collective beside it compute takes.
LONGER = 2


@dataclass(frozen=True)
class OverlapCase(Case):
    """Blocks sharded by themselves, in which each collective takes about so many ms, and compute ``LONGER``.

    With ``ahead`` each block prefetches the next one. With ``replicas`` their all-reduces take so long.
    """

    world_size: int = 2
    replicas: int = 1
    blocks: int = 6
    collective: int = 4
    ahead: bool = False
    dim: int = 16
    seed: int = 0

    def batch(self, rank: int) -> Tensor:
        """One rank's batch."""
        return draw((1, self.dim), mixed(self.seed, rank), exact=False).float()

    def layers(self) -> list[nn.Linear]:
        """A layer a block; what its numbers are does not matter."""
        return [nn.Linear(self.dim, self.dim, dtype=torch.float32) for _ in range(self.blocks)]


@dataclass(frozen=True)
class Times:
    """What one rank measured, in ms: a collective, the compute that it can run beside, and both on two streams.

    And a pass in which collectives take no time, one in which they do, and how many of them it ``made``.
    """

    collective: float
    compute: float
    together: float
    quiet: float
    delayed: float
    made: int

    @property
    def hideable(self) -> float:
        """How much of one collective the device hides behind compute."""
        return min(self.collective, max(0.0, self.compute + self.collective - self.together))

    @property
    def added(self) -> float:
        """What collectives add to a pass."""
        return self.delayed - self.quiet

    def allowed(self, alone: int) -> float:
        """What they may add, where ``alone`` have nothing to run beside."""
        return self.made * self.collective - (self.made - alone) * self.hideable / 2


def complaint(times: Times, least: int, alone: int) -> str:
    """What is wrong with a pass of ``least`` collectives or more, ``alone`` of which have nothing to hide behind."""
    c, added, allowed = times.collective, times.added, times.allowed(alone)
    if times.made < least:
        return f"expected {least} calls or more of the collectives that were set, got {times.made}"
    if times.hideable < BY_HAND * c:
        by_hand = f"{c:.1f} ms beside {times.compute:.1f} ms took {times.together:.1f} ms"
        return (
            f"expected two explicitly filled streams to run side by side, but {by_hand}: such a backend lacks 'streams'"
        )
    if added > allowed:
        what = f"{times.made} collectives of {c:.1f} ms to add at most {allowed:.1f} ms to {times.quiet:.1f} ms"
        return f"expected {what}, got {added:.1f} ms more"
    return ""
