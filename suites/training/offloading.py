"""Parameters that rest on the CPU: what runs on ranks, and where things lie.

On an accelerator a layer runs on the rank's device, while its parameter, gradient and momentum rest on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.hsdp import hsdp_cases
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import policy_of
from suites.kit.programs import apply, parameters, steps
from suites.kit.registered import layers
from suites.kit.strategies import stacks, training_cases
from suites.oracle.layout import own
from suites.oracle.situation import Trace

#: Nets without buffers: these do not rest on the CPU.
plain_cases = stacks(most_blocks=2, largest=5, buffers=False).flatmap(
    lambda net: training_cases(exact=True, net=net, dtype="float64")
)
replicated_cases = stacks(most_blocks=2, largest=5, buffers=False).flatmap(
    lambda net: hsdp_cases(exact=True, net=net, dtype="float64")
)


def policy(rank: Rank, pinned: bool) -> Any:
    """To rest on the CPU, pinned or not."""
    make = rank.implementation.cpu_offload_policy
    assert make is not None
    return make(pin_memory=pinned)


def options(rank: Rank, case: TrainingCase, pinned: bool) -> dict[str, Any]:
    """What the net is sharded with."""
    found: dict[str, Any] = {
        "offload_policy": policy(rank, pinned),
        "reshard_after_forward": case.reshard_after_forward,
    }
    if isinstance(case, PrecisionCase):
        found["mp_policy"] = policy_of(rank, case)
    return found


def train(rank: Rank, case: TrainingCase, pinned: bool = False) -> Trace:
    """Train a net whose parameters rest on the CPU."""
    return steps(rank, case, apply(rank, case, case.build(), **options(rank, case, pinned)))


def train_from_meta(rank: Rank, case: TrainingCase) -> Trace:
    """Shard a net without memory, give it memory on the CPU, fill it, and train."""
    with torch.device("meta"):
        net = case.net.build().to(case.torch_dtype)
    apply(rank, case, net, **options(rank, case, pinned=False)).to_empty(device="cpu")
    full = dict(case.build().named_parameters())
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            assert isinstance(parameter, DTensor)
            mine = own_rows(full[name], parameter)
            parameter.to_local().copy_(mine)
    return steps(rank, case, net)


def own_rows(full: Tensor, parameter: DTensor) -> Tensor:
    """This rank's rows of a full parameter, on a mesh of one axis."""
    size, place = parameter.device_mesh.size(), parameter.device_mesh.get_local_rank()
    step = -(-full.size(0) // size)
    return full.detach()[place * step : (place + 1) * step]


def train_in_backward(rank: Rank, case: TrainingCase) -> dict[str, Tensor]:
    """Update each parameter as soon as it has its gradient, and drop that; the parameters in the end."""
    net = apply(rank, case, case.build(), **options(rank, case, pinned=False))

    def update(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.data.sub_(case.learning_rate * parameter.grad)
        parameter.grad = None

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for step in range(case.steps):
        case.loss(net(case.inputs(step, rank.number).to(rank.device)), step, rank.number).backward()
    return parameters(net)


def resting_places(rank: Rank, case: TrainingCase, pinned: bool = False) -> dict[str, dict[str, str]]:
    """Where parameters, gradients, momenta and state dict lie after a step, and parameters when layers run."""
    net = apply(rank, case, case.build(), **options(rank, case, pinned))
    running: dict[str, str] = {}
    for name, layer in layers(net):
        layer.register_forward_pre_hook(
            lambda module, _, name=name: running.update(
                {f"{name}.{key}": where(p) for key, p in module.named_parameters()}
            )
        )
    sharded = places(dict(net.named_parameters()))
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate, momentum=0.5)
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    gradients = places({name: p.grad for name, p in net.named_parameters()})
    optimizer.step()
    return {
        "running": running,
        "the rank": {"device": torch.empty(0, device=rank.device).device.type},
        "sharded": sharded,
        "gradients": gradients,
        "parameters": places(dict(net.named_parameters())),
        "momenta": places({name: optimizer.state[p]["momentum_buffer"] for name, p in net.named_parameters()}),
        "state dict": places(net.state_dict()),
    }


def places(tensors: dict[str, Any]) -> dict[str, str]:
    """Where each tensor's own part lies."""
    return {name: where(tensor) for name, tensor in tensors.items()}


def where(tensor: Tensor | None) -> str:
    """The type of device that this rank's part lies on."""
    if tensor is None:
        return "nowhere"
    return own(tensor).device.type


def pinned_parts(rank: Rank, case: TrainingCase) -> dict[str, bool]:
    """Whether each parameter's and each gradient's own part is in pinned memory, of those that have any memory."""
    net = apply(rank, case, case.build(), **options(rank, case, pinned=True))
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    tensors: dict[str, Tensor] = dict(net.named_parameters())
    tensors.update({f"{name}.grad": p.grad for name, p in net.named_parameters() if p.grad is not None})
    parts = {name: own(t) for name, t in tensors.items()}
    return {name: part.is_pinned() for name, part in parts.items() if part.numel()}


def run_on_the_device(rank: Rank, case: TrainingCase) -> None:
    """Shard without memory, give memory on the rank's device instead of the CPU, and run."""
    with torch.device("meta"):
        net = case.net.build().to(case.torch_dtype)
    apply(rank, case, net, **options(rank, case, pinned=False)).to_empty(device=rank.device)
    net(case.inputs(0, rank.number).to(rank.device))


def defaults(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """What the policies are by default, and where a net rests with the one that asks for nothing."""
    none: Any = rank.implementation.offload_policy
    cpu = rank.implementation.cpu_offload_policy
    assert none is not None
    assert cpu is not None
    net = apply(rank, case, case.build(), offload_policy=none())
    found = where(next(net.parameters()))
    return {
        "pinned by default": cpu().pin_memory,
        "a kind of OffloadPolicy": isinstance(cpu(pin_memory=False), none),
        "rests on the device": found == torch.empty(0, device=rank.device).device.type,
    }
