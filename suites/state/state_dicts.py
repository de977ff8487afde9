"""State dicts of sharded nets: what runs on ranks, and what each rank must find.

A weight of five rows on two ranks is one entry on both, a DTensor whose local tensor is the parameter's own memory::

    rank 0: {"0.weight": DTensor, local rows 0, 1, 2}    rank 1: {"0.weight": DTensor, local rows 3, 4}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.parallel import cut_over_tp
from suites.kit.programs import apply, data_mesh
from suites.kit.registered import Facts, described, facts, sharded_modules
from suites.kit.strategies import stacks, training_cases
from suites.oracle.layout import own, shard

#: Nets without buffers: where those lie is not a matter of offload.
plain_cases = stacks(buffers=False).flatmap(lambda net: training_cases(exact=True, net=net, dtype="float64"))


@dataclass(frozen=True)
class PlacedCase(TrainingCase):
    """Every parameter is cut along its largest dim; of equal ones, the last."""

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter."""
        return shard(full, self.world_size, rank, largest(full))


def largest(tensor: Tensor) -> int:
    """The largest dim; of equal ones, the last."""
    return max(range(tensor.dim()), key=lambda dim: (tensor.size(dim), dim))


def prepared(rank: Rank, case: TrainingCase) -> nn.Sequential:
    """Build the net and shard it over the case's mesh: of one axis, of replicas, or with tensor parallelism beside."""
    options: dict[str, Any] = {"reshard_after_forward": case.reshard_after_forward}
    if isinstance(case, PlacedCase):
        options["shard_placement_fn"] = lambda parameter: Shard(largest(parameter))
    return apply(rank, case, cut_over_tp(rank, case, case.build()), **options)


def batch(rank: Rank, case: TrainingCase) -> Tensor:
    """A batch that neighbours under tensor parallelism share."""
    return case.inputs(0, case.data_rank(rank.number)).to(rank.device)


def other(case: TrainingCase) -> nn.Sequential:
    """The same net with other values everywhere."""
    return replace(case, seed=case.seed + 1).build()


def expected(case: TrainingCase, number: int, net: nn.Module | None = None) -> Facts:
    """The entries that rank ``number`` must have when the unsharded net is ``net``, or the case's."""
    net = net or case.build()
    buffers = dict(net.named_buffers())
    return {
        name: {"is": "a plain tensor", "local": full}
        if name in buffers
        else {"is": "a DTensor", "local": case.part(number, name, full)}
        for name, full in net.state_dict().items()
    }


def is_even(case: TrainingCase, name: str, full: Tensor) -> bool:
    """Whether every rank holds as many rows as every other."""
    return len({case.part(number, name, full).shape for number in range(case.world_size)}) == 1


# What runs on ranks.


def entries(rank: Rank, case: TrainingCase) -> Facts:
    """The entries of the state dict, in order."""
    return described(prepared(rank, case).state_dict())


def registered_afterwards(rank: Rank, case: TrainingCase) -> dict[str, Facts]:
    """What the module has registered after ``state_dict``, parameters, then buffers; and its entries, asked again."""
    net = prepared(rank, case)
    net.state_dict()
    registered = described({**dict(net.named_parameters()), **dict(net.named_buffers())})
    return {"registered": registered, "entries": described(net.state_dict())}


def in_own_memory(rank: Rank, case: TrainingCase) -> dict[str, bool]:
    """Of every parameter and buffer, whether its entry is its very memory; of empty ones, nothing can be said."""
    net = prepared(rank, case)
    state = net.state_dict()
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return {name: not own(t).numel() or own(t).data_ptr() == own(state[name]).data_ptr() for name, t in held.items()}


def load(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Load other values; the keys said to be missing or unexpected, the entries then, and which values moved."""
    return loaded(rank, case, forward=False)


def load_after_forward(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """The same where the last thing before was a forward."""
    return loaded(rank, case, forward=True)


def loaded(rank: Rank, case: TrainingCase, forward: bool) -> dict[str, Any]:
    """Ask for a state dict, run forward or not, and then load, with nothing between."""
    net = prepared(rank, case)
    fresh = other_state(rank, case, net)
    before = {name: own(value).data_ptr() for name, value in net.state_dict().items()}
    if forward:
        net(batch(rank, case))
    wrong = net.load_state_dict(fresh)
    state = net.state_dict()
    return {
        "keys that do not fit": [*wrong.missing_keys, *wrong.unexpected_keys],
        "entries": described(state),
        "moved": [name for name, value in state.items() if own(value).data_ptr() != before[name]],
    }


def other_state(rank: Rank, case: TrainingCase, net: nn.Module) -> dict[str, Tensor]:
    """Freshly allocated entries, of the same kinds as the net's, with the values of the other net."""
    full = other(case)
    buffers = dict(full.named_buffers())
    fresh = {name: value.detach().clone() for name, value in net.state_dict().items()}
    for name, value in full.state_dict().items():
        own(fresh[name]).copy_(value if name in buffers else case.part(rank.number, name, value))
    return fresh


def outputs_after_load(rank: Rank, case: TrainingCase) -> Tensor:
    """Run forward, load other values, and run it again."""
    net = prepared(rank, case)
    fresh = other_state(rank, case, net)
    net(batch(rank, case))
    net.load_state_dict(fresh)
    outputs: Tensor = net(batch(rank, case))
    return outputs.detach()


def before_and_after_forward(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """The entries before a forward and after it, and what is registered once they were asked for."""
    net = prepared(rank, case)
    before = described(net.state_dict())
    net(batch(rank, case))
    after = described(net.state_dict())
    return {"before": before, "after": after, "registered": facts(net)}


def after_unshard(rank: Rank, case: TrainingCase) -> Facts:
    """The entries while every sharded module has its full parameters registered."""
    net = prepared(rank, case)
    for module in sharded_modules(net, case):
        module.unshard()
    return described(net.state_dict())


def load_in_parts(rank: Rank, case: TrainingCase, pin: bool | None) -> dict[str, Any]:
    """On meta: load one parameter after the other, each by ``assign``, then run forward.

    ``pin`` is what is said to the policy of CPU offload; without such a policy it is None.
    """
    policy = rank.implementation.cpu_offload_policy
    options = {} if pin is None or policy is None else {"offload_policy": policy(pin_memory=pin)}
    with torch.device("meta"):
        net = case.net.build().to(case.torch_dtype)
    apply(rank, case, net, **options)
    full = dict(other(case).named_parameters())
    for name, parameter in list(net.named_parameters()):
        value = distributed(rank, case, parameter, case.part(rank.number, name, full[name].detach()))
        net.load_state_dict({name: value.cpu() if options else value}, assign=True, strict=False)
    outputs = net(batch(rank, case)).detach()
    state = net.state_dict()
    return {"outputs": outputs, "entries": described(state), "devices": {k: v.device.type for k, v in state.items()}}


def distributed(rank: Rank, case: TrainingCase, parameter: Any, values: Tensor) -> DTensor:
    """A new DTensor of the kind of ``parameter`` with this rank's ``values``."""
    shape, stride = parameter.shape, parameter.stride()
    mesh, placements = data_mesh(rank, case), parameter.placements
    return DTensor.from_local(values.to(rank.device), mesh, placements, run_check=False, shape=shape, stride=stride)
