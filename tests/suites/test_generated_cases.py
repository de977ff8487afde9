"""Generated cases: valid by construction, the same when they come back from JSON, and with a bound of their own."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.data.comparison import difference
from harness.vendor.bounds import set_judged
from reference_models import nets
from suites.generated.net_cases import GeneratedCase, Group
from suites.generated.net_strategies import (
    ahead_cases,
    branched_cases,
    checkpointed_cases,
    children_first,
    frozen_nets,
    generated_cases,
    nested_cases,
    nets_with,
    shared_nets,
    twices,
)
from suites.kit.hsdp import hsdp_meshes
from suites.kit.nets import LEAVES, NAMED, OUTPUTS, Block, Named, Net, skeleton
from suites.kit.trees import is_closed
from suites.oracle.expected import expected
from suites.oracle.situation import tensors_in
from suites.oracle.unsharded import State, played
from suites.scenarios.scenario import Scenario

ANY_CASE = st.one_of(
    generated_cases(),
    generated_cases(meshes=hsdp_meshes()),
    generated_cases(nets=shared_nets()),
    generated_cases(nets=frozen_nets()),
    generated_cases(nets=nets_with(twices()), lists=False),
    branched_cases(apart=False),
    branched_cases(apart=True),
    checkpointed_cases(),
    ahead_cases(),
    nested_cases(),
)


def of_steps(case: GeneratedCase, entries: list[State], action: str) -> list[State]:
    """What was seen after the last such action of each step."""
    size = len(case.actions) // case.steps
    last = max(place for place in range(size) if case.actions[place] == action)
    return entries[last::size]


@given(case=ANY_CASE)
def test_plans_can_be_carried_out(case: GeneratedCase) -> None:
    """A group has all that it shares, a module comes once and before what it lies within, and the root is last."""
    built, done = skeleton(case.net), []
    for group in case.groups:
        modules = [built.get_submodule(name) for name in group.modules]
        assert group.modules == ("",) or is_closed(built, *group.modules)
        assert not any(isinstance(module, nn.ModuleList) for module in modules)
        assert not any(inner in set(before.modules()) - {before} for inner in modules for before in done)
        done += modules
    assert max(Counter(map(id, done)).values()) == 1
    assert done[-1] is built


@given(case=ANY_CASE)
def test_some_of_every_generated_net_trains(case: GeneratedCase) -> None:
    """In every step some parameter has a gradient that is not zero, and every loss is finite."""
    entries = played(case)
    for step, entry in enumerate(of_steps(case, entries, "backward")):
        assert any(gradient is not None and gradient.any() for gradient in entry["gradients"].values()), step
    assert all(found["losses"][0].isfinite() for entry in entries for found in entry["found"] if "losses" in found)


@pytest.mark.parametrize("name", NAMED)
def test_every_named_net_can_be_trained(name: str) -> None:
    """Each net of ``reference_models.nets`` has inputs that fit it, and outputs with tensors."""
    case = GeneratedCase(2, Named(name), dtype="float32")
    assert tensors_in(case.run(case.build(), 0, 0, torch.float32))
    assert len(played(case)) == len(case.actions)


def test_children_come_first_and_else_the_order_stays() -> None:
    """What lies within another goes before it; nothing else moves."""
    assert children_first([("a",), ("c.d",), ("a.b",), ("c",)]) == [("c.d",), ("a.b",), ("a",), ("c",)]


def test_a_net_reads_as_a_person_would_write_it() -> None:
    """Names follow from the tree, kinds are modules of their names, and the output is structured as asked."""
    blocks = (Block("linear"), Block("residual", (Block("norms"), Block("twice", (Block("mlp"),)))))
    net = Net(3, blocks, output="dataclass").make()
    assert isinstance(net.get_submodule("blocks.1.blocks.1.module"), nets.MLP)
    assert isinstance(net(torch.ones(2, 3, 3), torch.zeros(2, 3, dtype=torch.int64), 0), nets.Outputs)


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("output", OUTPUTS)
def test_every_block_fits_any_other(kind: str, output: str) -> None:
    """A block of any kind maps features to features of the same shape, whatever becomes of them."""
    case = GeneratedCase(2, Net(3, (Block(kind), Block("linear"), Block(kind)), output))
    assert of_steps(case, played(case), "backward")[0]["gradients"]["blocks.1.weight"] is not None


def plain(tensor: Tensor) -> GeneratedCase:
    """A case of one linear layer; ``tensor`` says how many ranks and micro-batches."""
    ranks, micros = tensor.shape
    return GeneratedCase(ranks, Net(2, (Block("linear"),)), reduced=(True,) * micros, steps=1)


def test_the_baseline_averages_ranks_and_adds_micro_batches() -> None:
    """The gradient is the mean over ranks of the sum over micro-batches, as autograd gives it for one loss of all."""
    case = plain(torch.empty(3, 2))
    net = case.build()
    losses = [
        case.losses(case.run(net, micro, rank, torch.float64), micro, rank)[0]
        for rank in range(3)
        for micro in range(2)
    ]
    (torch.stack(losses).sum() / 3).backward()
    entries = played(case)
    for name, parameter in net.named_parameters():
        assert torch.allclose(entries[3]["gradients"][name], parameter.grad, rtol=0, atol=1e-15)
        moved = parameter - case.learning_rate * parameter.grad
        assert torch.allclose(entries[4]["parameters"][name], moved, rtol=0, atol=1e-15)


def test_buffers_of_the_baseline_are_by_rank() -> None:
    """Ranks see other batches, so running means differ; each equals that of a net that saw the rank's batches alone."""
    case = GeneratedCase(2, Net(3, (Block("norms"),)), steps=1)
    buffers = played(case)[0]["buffers"]
    name = "blocks.0.batch.running_mean"
    for rank in range(2):
        net = case.build()
        case.run(net, 0, rank, torch.float64)
        assert buffers[rank][name].equal(net.get_buffer(name))
    assert not buffers[0][name].equal(buffers[1][name])


def test_what_no_rank_used_has_no_gradient() -> None:
    """A branch that no rank took has None, one that one of two ranks took half of that rank's gradient."""
    branches = Net(2, (Block("branches", (Block("linear"), Block("linear"))),))
    skipped, apart, alone = (
        played(GeneratedCase(ranks, branches, routes=(route,)))[1]["gradients"]
        for ranks, route in ((2, (0, 0)), (2, (0, 1)), (1, (0,)))
    )
    name = "blocks.0.branches.0.weight"
    assert skipped["blocks.0.branches.1.weight"] is None
    assert torch.equal(apart[name], alone[name] / 2)


@given(case=generated_cases(dtype="float32"))
def test_rounding_is_allowed_and_a_wrong_scale_is_not(case: GeneratedCase) -> None:
    """Training in float32 is within the bound of the float64 oracle; with gradients twice as large it is not."""
    rounded = played(case, working=True)
    doubled = [
        {**entry, "gradients": {name: g if g is None else g * 2 for name, g in entry.get("gradients", {}).items()}}
        for entry in rounded
    ]
    assert not off(case, rounded)
    assert off(case, doubled)


def test_a_tensor_may_round_on_a_device_as_the_worst_one_does() -> None:
    """A bias that rounds by 7e-17 on the CPU, behind group norms that round by 7e-15, did by 8.3e-15 on a device."""
    case = Scenario(net="norms", rows="fewer")
    bounds = []
    for device_type in ("cpu", "simulated"):
        before = set_judged(None, device_type)
        bounds.append(expected(case).within("'gradients' 'blocks.2.first.layer.bias'", torch.empty(0)))
        set_judged(*before)
    assert bounds[0] < 8.3e-15 < bounds[1] < 1e-11


def off(case: GeneratedCase, entries: list[State]) -> bool:
    """Whether what was played differs on the first rank from what is expected by more than is allowed."""
    want = expected(case)
    got = copy.copy(want)
    got.wide = entries
    pairs = ((got.on_rank(place, 0), want.on_rank(place, 0)) for place in range(len(entries)))
    return any(difference({name: one[name] for name in other}, other, want.within).too_much for one, other in pairs)


def test_parameters_are_cut_along_the_dim_asked_for_where_it_fits() -> None:
    """Of a weight (8, 4, 3) two ranks cut dim 1, and dim 2 not, since three is odd."""
    case = GeneratedCase(2, Net(4, (Block("convolution"),)), (Group(),), dim=1)
    weight = case.build().get_parameter("blocks.0.wide.weight")
    assert case.part(1, "", weight).shape == (8, 2, 3)
    assert replace(case, dim=2).part(1, "", weight).shape == (4, 4, 3)
