"""What users do to sharded parameters: change, replace or convert them; and what the unsharded model makes of it.

Ranks 0 and 1 of two hold [1.] and [2.] of a bias; each doubles its own and takes 1 from it, and the next forward on
both adds [1., 3.].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.vendor import Implementation
from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.programs import laid_as
from suites.oracle.layout import own, shard
from suites.oracle.sharded import Resting, State, played_on
from suites.passes.autograd_routes import ALONE
from suites.passes.pass_programs import Walking
from suites.passes.pass_strategies import HowCase, pass_cases
from suites.passes.passes import Blocks, Found, Pass, Route, shard_by_plan


def edited(p: Pass) -> Found:
    """A forward, after which all parameters are changed in place: by themselves, their data or their local parts."""
    with torch.no_grad():
        outputs = p.net(p.inputs()).clone()
        for module in p.net.modules():
            p.tell(module, "reshard")
        for parameter in p.net.parameters():
            tensor = own(parameter) if p.case.how == "local" else parameter
            (tensor.data if p.case.how == "data" else tensor).mul_(2).sub_(1)
    yield {"outputs": outputs}


EDITED = Route(edited, actions=ALONE)


def replaced(implementation: Implementation, case: HowCase, net: Any, **options: Any) -> None:
    """Shard a net of other numbers, and then give it those that it had: load them, assign them, or set each."""
    full = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2).sub_(1)
    shard_by_plan(implementation, case, net, **options)
    mesh = options["mesh"]
    mine = {name: shard(whole, mesh.size(), mesh.get_local_rank()).clone() for name, whole in full.items()}
    new = {name: laid_as(parameter, mine[name]) for name, parameter in net.named_parameters()}
    if case.how != "setattr":
        net.load_state_dict(new, assign=case.how == "assign")
        return
    for name, tensor in new.items():
        owner, _, key = name.rpartition(".")
        setattr(net.get_submodule(owner), key, nn.Parameter(tensor))


REPLACED = Route(spread=replaced)


# Conversions.


class Sum(Blocks):
    """All blocks run on the inputs, and their outputs are added: gradients then need few bits."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return sum(block(x) for block in self.blocks)


@dataclass(frozen=True)
class DtypeCase(TrainingCase):
    """The net is converted before each step, from the second on ``by_way_of`` another dtype.

    ``computes`` is the policy's ``param_dtype``, if there is a policy.
    """

    dtypes: tuple[str, ...] = ()
    by_way_of: str = ""
    computes: str = ""


DTYPES = st.sampled_from(["float64", "bfloat16", "float32", "float16"])


@st.composite
def dtype_cases(draw: st.DrawFn, moment: Literal["first", "and back", "for good"]) -> DtypeCase:
    """Conversions before the first step only, or between steps and back, or to stay."""
    start, later, last = draw(st.lists(DTYPES, min_size=3, max_size=3, unique=True))
    dtypes = {"first": (later,) * 3, "and back": (start,) * 3, "for good": (start, later, last)}[moment]
    plain = vars(draw(pass_cases(plain=True, steps=3, batch=2)))
    return DtypeCase(**{**plain, "dtype": start, "dtypes": dtypes}, by_way_of=later if moment == "and back" else "")


def converted(p: Pass) -> Found:
    """Convert the net, then train; in which dtype parameters are, outputs come and gradients lie."""
    if p.case.by_way_of and p.batch > 0:
        p.net.to(getattr(torch, p.case.by_way_of))
    p.net.to(getattr(torch, p.case.dtypes[p.batch]))
    at_rest = {name: str(q.dtype) for name, q in p.net.named_parameters()}
    outputs = p.net(p.inputs())
    p.loss(outputs).backward()
    yield {"at rest": at_rest, "outputs": str(outputs.dtype)}


CONVERTED = Route(converted, net=Sum, actions=ALONE)


def converted_under_policy(rank: Rank, case: DtypeCase, route: Route) -> list[State]:
    """The same under a policy."""
    policy, dtype = rank.implementation.mixed_precision_policy, getattr(torch, case.computes)
    assert policy is not None
    return played_on(Walking(rank, case, route, mp_policy=policy(param_dtype=dtype)))


# Sharding layer by layer.


class BuiltInLayers(Resting):
    """A net of which one layer after the other is built and sharded."""

    def made(self) -> Any:
        """Later layers may lie where earlier ones lay."""
        fully_shard, mesh, layers = self.rank.implementation.fully_shard, self.rank.mesh(), []
        assert fully_shard is not None
        for full in self.case.build():
            layer = nn.Linear(full.in_features, full.out_features, dtype=full.weight.dtype)
            layer.load_state_dict(full.state_dict())
            layers.append(fully_shard(layer.to(self.rank.device), mesh=mesh))
        return fully_shard(nn.Sequential(*layers), mesh=mesh)
