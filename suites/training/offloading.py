"""Parameters that rest on the CPU: what runs on ranks, and where things lie.

On an accelerator a layer runs on the rank's device, while its parameter, gradient and momentum rest on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.programs import ShardedStack, after_a_step, apply, sharded, write
from suites.kit.registered import when_run
from suites.kit.strategies import stacks, training_cases
from suites.oracle.layout import own

#: Nets without buffers: these do not rest on the CPU.
plain_nets = stacks(most_blocks=2, largest=5, buffers=False)
plain_cases = training_cases(exact=True, net=plain_nets, dtype="float64")
replicated_cases = hsdp_cases(exact=True, net=plain_nets, dtype="float64")


class Offloaded(ShardedStack):
    """A net on one rank whose parameters rest on the CPU, in memory that is not pinned."""

    pinned = False

    def __init__(self, rank: Rank, case: TrainingCase) -> None:
        super().__init__(rank, case, offload_policy=rank.implementation.cpu_offload_policy(pin_memory=self.pinned))


class Pinned(Offloaded):
    """The same in pinned memory."""

    pinned = True


class OffloadedFromMeta(Offloaded):
    """Such a net that is sharded without memory, and given memory on the CPU."""

    on_cpu = True

    def made(self) -> Any:
        """The net, filled."""
        with torch.device("meta"):
            net = self.case.net.build().to(self.case.torch_dtype)
        net = sharded(self.rank, self.case, net, **self.options)
        net.to_empty(device="cpu" if self.on_cpu else self.rank.device)
        write(self.rank, self.case, net)
        return net


class OffloadedElsewhere(OffloadedFromMeta):
    """Such a net that is given memory on the rank's device instead."""

    on_cpu = False


class OffloadedReplicas(Offloaded):
    """Such a net that is replicated."""

    def made(self) -> Any:
        """The net."""
        return apply(self.rank, self.case, self.case.build(), self.rank.implementation.replicate_fsdp, **self.options)


def resting_places(rank: Rank, case: TrainingCase, kind: type[Offloaded] = Offloaded) -> dict[str, dict[str, str]]:
    """Where parameters, gradients, momenta and state dict lie after a step, and parameters when layers run."""
    net = kind(rank, case).net
    running = when_run(net, where)
    return {
        "the rank": {"device": torch.empty(0, device=rank.device).device.type},
        "sharded": {name: where(p) for name, p in net.named_parameters()},
        **after_a_step(rank, case, net, where),
        "running": running,
    }


def where(tensor: Tensor | None) -> str:
    """The type of device that this rank's part lies on."""
    return "nowhere" if tensor is None else own(tensor).device.type


def pinned_parts(rank: Rank, case: TrainingCase) -> dict[str, bool]:
    """Whether each parameter's and each gradient's own part is in pinned memory, of those that have any memory."""
    stack = Pinned(rank, case)
    stack.do_all(("forward", "backward"))
    gradients = {f"{name}.grad": p.grad for name, p in stack.held.items() if p.grad is not None}
    parts = {name: own(tensor) for name, tensor in {**stack.held, **gradients}.items()}
    return {name: part.is_pinned() for name, part in parts.items() if part.numel()}


def defaults(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """What the policies are by default, and where a net rests with the one that asks for nothing."""
    none: Any = rank.implementation.offload_policy
    cpu = rank.implementation.cpu_offload_policy
    net = ShardedStack(rank, case, offload_policy=none()).net
    return {
        "pinned by default": cpu().pin_memory,
        "a kind of OffloadPolicy": isinstance(cpu(pin_memory=False), none),
        "rests on the device": where(next(net.parameters())) == torch.empty(0, device=rank.device).device.type,
    }
