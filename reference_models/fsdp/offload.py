"""Where sharded parameters and gradients rest between their uses.

Two ranks, rows [1 2 3 4] offloaded: rank 0 keeps [1 2] on the CPU, copies them to the device to be gathered, and copies
its part of the gradient back when it is reduced; the device holds [1 2 3 4] during forward and backward alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class OffloadPolicy:
    """Rest on the mesh's own device: no offload."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Rest on the CPU; copied to the device before a gather, and back after a reduction.

    ``pin_memory`` keeps them in page-locked memory, so that copies run beside computation; it needs an accelerator.
    """

    pin_memory: bool = True


def at_rest(flat: Tensor, policy: OffloadPolicy) -> Tensor:
    """A flat tensor where it rests by the policy."""
    return pinned(flat.cpu() if isinstance(policy, CPUOffloadPolicy) and not flat.is_meta else flat, policy)


def pinned(flat: Tensor, policy: OffloadPolicy) -> Tensor:
    """In page-locked memory, if that was asked for and it is on the CPU."""
    wanted = isinstance(policy, CPUOffloadPolicy) and policy.pin_memory
    return flat.pin_memory() if wanted and flat.device.type == "cpu" else flat


def fetched(tensor: Tensor, policy: OffloadPolicy, device: torch.device) -> Tensor:
    """What rests by the policy, on the device."""
    return tensor.to(device, non_blocking=policy.pin_memory) if isinstance(policy, CPUOffloadPolicy) else tensor


def landing(part: Tensor, policy: CPUOffloadPolicy) -> tuple[Tensor, Any]:
    """A copy on the CPU, and the event to wait for before it is read; None where it is there already."""
    if not policy.pin_memory or part.device.type == "cpu":
        return part.to("cpu"), None
    landed = torch.empty(part.size(), dtype=part.dtype, pin_memory=True)
    landed.copy_(part, non_blocking=True)
    return landed, torch.accelerator.current_stream().record_event()
