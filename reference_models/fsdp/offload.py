"""Where sharded parameters and gradients rest between their uses.

Two ranks, rows [1 2 3 4] offloaded: rank 0 keeps [1 2] on the CPU, copies them to the device to be gathered, and copies
its part of the gradient back when it is reduced; the device holds [1 2 3 4] during forward and backward alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class OffloadPolicy:
    """Rest on the mesh's own device: no offload."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Rest on the CPU; copied to the device before a gather, and back after a reduction.

    ``pin_memory`` keeps them in page-locked memory, so that copies run beside computation; it needs an accelerator.
    """

    pin_memory: bool = True
