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
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.programs import gradients
from suites.kit.registered import prepared, sharded_modules
from suites.oracle.layout import shard
from suites.passes.pass_programs import walk
from suites.passes.pass_strategies import pass_cases
from suites.passes.passes import Blocks, Found, Pass, Route


@dataclass(frozen=True)
class EditCase(TrainingCase):
    """The user changes all parameters in one of some ways."""

    how: str = ""


@st.composite
def edit_cases(draw: st.DrawFn, ways: tuple[str, ...]) -> EditCase:
    """Any of the ways."""
    return EditCase(**vars(draw(pass_cases())), how=draw(st.sampled_from(ways)))


def outputs_between_edits(rank: Rank, case: EditCase) -> list[Tensor]:
    """Outputs of forwards between which sharded parameters are changed in place."""
    net = prepared(rank, case)
    return [_output_then_edit(rank, case, net) for _ in range(3)]


def _output_then_edit(rank: Rank, case: EditCase, net: Any) -> Tensor:
    with torch.no_grad():
        outputs: Tensor = net(case.inputs(0, rank.number).to(rank.device)).clone()
    for module in sharded_modules(net, case):
        module.reshard()
    for parameter in net.parameters():
        edit(parameter, case.how)
    return outputs


@torch.no_grad()
def edit(parameter: Any, how: str) -> None:
    """Change a parameter in place: by itself, its data or its local part."""
    tensor = parameter.to_local() if how == "local" and isinstance(parameter, DTensor) else parameter
    (tensor.data if how == "data" else tensor).mul_(2).sub_(1)


def expected_between_edits(case: EditCase, number: int) -> list[Tensor]:
    """The same outputs of the unsharded net."""
    net, found = case.build(), []
    for _ in range(3):
        with torch.no_grad():
            found.append(net(case.inputs(0, number)).clone())
        for parameter in net.parameters():
            edit(parameter, "")
    return found


def pass_after_replacing(rank: Rank, case: EditCase) -> dict[str, Any]:
    """Outputs and gradients of the first pass, before which all sharded parameters were given other numbers."""
    net = prepared(rank, case)
    new = {name: _like(p, new_numbers(case, place)) for place, (name, p) in enumerate(net.named_parameters())}
    if case.how == "setattr":
        for name, tensor in new.items():
            owner, _, key = name.rpartition(".")
            setattr(net.get_submodule(owner), key, nn.Parameter(tensor))
    else:
        net.load_state_dict(new, assign=case.how == "assign")
    outputs = net(case.inputs(0, rank.number).to(rank.device))
    case.loss(outputs, 0, rank.number).backward()
    return {"outputs": outputs.detach().clone(), "gradients": gradients(net)}


def _like(parameter: Any, full: Tensor) -> Tensor:
    """The rows of ``full`` that this rank holds, as a DTensor that lies as ``parameter`` does."""
    mesh = parameter.device_mesh
    rows = shard(full, mesh.size(), mesh.get_local_rank()).clone().to(parameter.device)
    placed = parameter.placements
    return DTensor.from_local(rows, mesh, placed, run_check=False, shape=full.shape, stride=full.stride())


def new_numbers(case: EditCase, place: int) -> Tensor:
    """What a parameter is replaced by, from its place among all."""
    full = list(case.build().parameters())[place]
    return case.numbers(tuple(full.shape), 9, place)


def expected_after_replacing(case: EditCase) -> list[dict[str, Any]]:
    """The same pass of the unsharded net, as each rank must see it."""
    net = case.build()
    with torch.no_grad():
        for place, parameter in enumerate(net.parameters()):
            parameter.copy_(new_numbers(case, place))
    outputs = [net(case.inputs(0, number)) for number in range(case.world_size)]
    torch.stack([case.loss(each, 0, number) for number, each in enumerate(outputs)]).sum().backward()
    means = {name: p.grad / case.world_size for name, p in net.named_parameters() if p.grad is not None}
    return [
        {"outputs": each.detach(), "gradients": {n: shard(g, case.world_size, number) for n, g in means.items()}}
        for number, each in enumerate(outputs)
    ]


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


@st.composite
def policy_cases(draw: st.DrawFn) -> DtypeCase:
    """A conversion before the first step, where a policy says what to compute in."""
    return DtypeCase(**{**vars(draw(dtype_cases("first"))), "computes": draw(DTYPES)})


def converted(p: Pass) -> Found:
    """Convert the net, then train; in which dtype parameters are, outputs come and gradients lie."""
    assert isinstance(p.case, DtypeCase)
    dtype = getattr(torch, p.case.dtypes[p.step])
    if p.case.by_way_of and p.step > 0:
        p.net.to(getattr(torch, p.case.by_way_of))
    p.net.to(dtype)
    at_rest = {name: str(q.dtype) for name, q in p.net.named_parameters()}
    outputs = p.net(p.inputs().to(dtype))
    p.loss(outputs).backward()
    yield {"at rest": at_rest, "outputs": str(outputs.dtype)}


CONVERTED = Route(converted, net=Sum)


def converted_under_policy(rank: Rank, case: DtypeCase) -> list[Any]:
    """The same under a policy."""
    policy, dtype = rank.implementation.mixed_precision_policy, getattr(torch, case.computes)
    assert policy is not None
    return walk(rank, case, CONVERTED, mp_policy=policy(param_dtype=dtype))


# Sharding layer by layer.


def shard_while_building(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Build and shard one layer after the other, so that later ones may lie where earlier ones lay; then a pass."""
    fully_shard, layers = rank.implementation.fully_shard, []
    assert fully_shard is not None
    for place in range(len(case.net.blocks)):
        layer = Stack(dim=case.net.dim, blocks=("linear",), bias=case.net.bias).build()[0].to(case.torch_dtype)
        with torch.no_grad():
            for each in layer.parameters():
                each.copy_(case.numbers(tuple(each.shape), 9, place))
        layers.append(fully_shard(layer.to(rank.device), mesh=rank.mesh()))
    net = fully_shard(nn.Sequential(*layers), mesh=rank.mesh())
    outputs = net(case.inputs(0, rank.number).to(rank.device))
    outputs.sum().backward()
    return {"outputs": outputs.detach().clone(), "with gradients": sum(p.grad is not None for p in net.parameters())}


def expected_while_building(case: TrainingCase, number: int) -> dict[str, Any]:
    """The same of plain layers."""
    outputs = case.inputs(0, number)
    for place in range(len(case.net.blocks)):
        weight = case.numbers((case.net.dim, case.net.dim), 9, place)
        bias = case.numbers((case.net.dim,), 9, place) if case.net.bias else None
        outputs = nn.functional.linear(outputs, weight, bias)
    return {"outputs": outputs, "with gradients": len(case.net.blocks) * (2 if case.net.bias else 1)}
