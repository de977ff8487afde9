"""Where sharded parameters and gradients rest between their uses."""

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
