"""The meta device: nets are built and sharded without memory, given memory, filled, and trained.

A weight of five rows on two ranks has no memory anywhere until ``to_empty``, and three and two rows of it afterwards::

    fully_shard    rank 0: DTensor of (5, 4), local (3, 4) on meta    rank 1: DTensor of (5, 4), local (2, 4) on meta
    to_empty       rank 0: local (3, 4) on the device                  rank 1: local (2, 4) on the device
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from hypothesis import example
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from harness.requirement import requirement
from harness.trial import Trial, refused
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import SPREAD, Stack
from suites.kit.parallel import ParallelCase, cut_over_tp, parallel_cases
from suites.kit.programs import (
    CONSTANT,
    apply,
    data_mesh,
    gradients,
    layouts,
    loss_of,
    parameters,
    tensors,
    whole_mesh,
    write,
)
from suites.kit.strategies import cases_of, given, given_half, training_cases
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows
from suites.oracle.sharded import Resting

#: What is required of a parameter, on meta and on the device.
FACTS = (*SPREAD, "size", "local size", "device")
#: Below this a gradient may be too small for an optimizer to move a float32 weight by it.
TINY = 1e-4


@dataclass(frozen=True)
class MetaCase(ParallelCase):
    """A net that is sharded on meta.

    ``default_mesh`` leaves the mesh to ``fully_shard``; ``inside`` calls it within the meta context, where the net is
    built in any case. ``given`` are the blocks that get memory in a test of what is left on meta.
    """

    default_mesh: bool = False
    inside: bool = True
    given: tuple[int, ...] = ()


def meta_cases(at_least: int = 1, exact: bool = False) -> st.SearchStrategy[MetaCase]:
    """A net of one mesh axis that begins on meta."""
    cases = training_cases(at_least=at_least, exact=exact)
    either = {"default_mesh": st.booleans(), "inside": st.booleans()}
    return cases_of(MetaCase, cases, axes=st.just(("dp",)), **either)


@st.composite
def cases_in_part(draw: st.DrawFn) -> MetaCase:
    """The same where some blocks but not all are given memory."""
    case = draw(meta_cases())
    last = len(case.net.blocks) - 1
    return replace(case, given=tuple(sorted(draw(st.sets(st.integers(0, last), max_size=last)))))


def on_meta(rank: Rank, case: MetaCase) -> nn.Sequential:
    """Build the net on meta and cut it there over all axes."""
    options: dict[str, Any] = {"reshard_after_forward": case.reshard_after_forward}
    its_own = case.default_mesh and default_device_type() == rank.device.type
    options["mesh"] = None if its_own else data_mesh(rank, case)
    with torch.device("meta"):
        net = cut_over_tp(rank, case, case.net.build().to(case.torch_dtype))
        if case.inside:
            return apply(rank, case, net, **options)
    return apply(rank, case, net, **options)


def default_device_type() -> str:
    """Where ``fully_shard`` makes its own mesh: on the accelerator, or on the CPU when there is none."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator.type if accelerator else "cpu"


def materialized(rank: Rank, case: MetaCase) -> nn.Sequential:
    """The same with memory on the device, not yet written."""
    net = on_meta(rank, case)
    net.to_empty(device=rank.device)
    return net


def lie(trial: Trial, case: MetaCase, make: Callable[[Rank, MetaCase], nn.Module], **other: Any) -> None:
    """Require of every parameter of the net that is made so how it lies; ``other`` is what is unusual."""
    finds(trial, partial(facts_of, make=make), case, lambda rank: case.layouts(rank, *FACTS, **other))


def facts_of(rank: Rank, case: MetaCase, make: Callable[[Rank, MetaCase], nn.Module]) -> dict[str, Any]:
    """What every parameter is."""
    return layouts(make(rank, case), whole_mesh(rank, case), *FACTS)


def left_unwritten(rank: Rank, case: MetaCase) -> dict[str, bool]:
    """Of every shard and buffer, whether ``reset_parameters`` of all modules left any of it as it was."""
    net = reset(rank, case)
    return {name: bool((tensor == CONSTANT).any()) for name, tensor in tensors(net).items()}


def reset(rank: Rank, case: MetaCase) -> nn.Sequential:
    """Write a constant over everything, then call ``reset_parameters`` of each module that has it."""
    net = materialized(rank, case)
    for tensor in tensors(net).values():
        tensor.fill_(CONSTANT)
    for module in net.modules():
        if callable(reset_parameters := getattr(module, "reset_parameters", None)):
            reset_parameters()
    return net


def step_after_reset(rank: Rank, case: MetaCase) -> dict[str, Any]:
    """One step of Adam: whether the loss is finite, and which parameters got no gradient or did not follow it."""
    net = reset(rank, case)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    before = parameters(net)
    loss = loss_of(rank, case, net)
    loss.backward()
    found = gradients(net)
    large = {name: gradient.abs() > TINY for name, gradient in found.items() if gradient is not None}
    optimizer.step()
    after = parameters(net)
    return {
        "finite": bool(loss.isfinite()),
        "without gradient": [name for name in found if name not in large],
        "stuck": [name for name, moves in large.items() if bool((moves & (after[name] == before[name])).any())],
    }


class FromMeta(Resting):
    """A net that began on meta, on one rank."""

    def made(self) -> Any:
        """The net with the case's weights written into its shards."""
        net = materialized(self.rank, self.case)
        write(self.rank, self.case, net)
        return net


class FromFullState(FromMeta):
    """The same, loaded by torch's tools from whole tensors."""

    def made(self) -> Any:
        """The net with the case's weights, all of which every rank gives."""
        net, state = on_meta(self.rank, self.case), self.case.build().to(self.rank.device).state_dict()
        set_model_state_dict(net, state, options=StateDictOptions(full_state_dict=True))
        return net


def forward_too_early(rank: Rank, case: MetaCase) -> None:
    """Run forward while parameters of blocks that were not ``given`` memory are on meta."""
    net = on_meta(rank, case)
    for place in case.given:
        net[place].to_empty(device=rank.device)
    net(case.inputs(0, rank.number).to(rank.device))


def names_left_on_meta(case: MetaCase) -> list[str]:
    """The parameters on meta of the first group, root first, that has any there."""
    names = [name for name, _ in case.net.build().named_parameters()]
    left = [name for name in names if int(name.partition(".")[0]) not in case.given]
    units = {case.unit_of(name): [each for each in left if case.unit_of(each) == case.unit_of(name)] for name in left}
    return units.get("root") or next(iter(units.values()))


def names_in(message: str, case: MetaCase) -> list[str]:
    """The parameters that a message names, in the net's order."""
    words = re.findall(r"[\w.]*\w", message)
    return [name for name, _ in case.net.build().named_parameters() if name in words]


TWO_AXES = (Feature.FULLY_SHARD, Feature.META_DEVICE, Feature.TENSOR_PARALLEL)
two_axis_cases = partial(parallel_cases, kind=MetaCase)
#: Two ranks, which do not divide rows.
UNEVEN = MetaCase(2, Stack(3, ("linear",), multiplier=1), axes=("dp",))


@requirement("meta/sharding-keeps-meta", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_parameters_sharded_on_meta_stay_there_as_dtensors(trial: Trial, case: MetaCase) -> None:
    """Parameters sharded on meta stay on meta, as DTensors placed and cut as on a device, with any mesh."""
    lie(trial, case, on_meta, device="meta")


@requirement("meta/to-empty", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@example(case=UNEVEN)
@given(case=meta_cases())
def test_to_empty_gives_every_shard_memory_on_the_device(trial: Trial, case: MetaCase) -> None:
    """After to_empty every parameter lies on the device, as a DTensor of the same size, placements and rows."""
    lie(trial, case, materialized)


@requirement("meta/reset-parameters", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@example(case=UNEVEN)
@given(case=meta_cases())
def test_reset_parameters_writes_every_shard(trial: Trial, case: MetaCase) -> None:
    """After to_empty, reset_parameters of each module writes every element of every shard and every buffer."""
    everything_is_written(trial, case)


@requirement("meta/step-after-reset", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C13")
@given(case=meta_cases())
def test_one_step_runs_after_reset_parameters(trial: Trial, case: MetaCase) -> None:
    """Training starts from reset parameters: the loss is finite, and a step moves every element that has a gradient."""
    finds(trial, step_after_reset, case, {"finite": True, "without gradient": [], "stuck": []})


@requirement("meta/training", Feature.FULLY_SHARD, Feature.META_DEVICE, ranks=2, source="C13")
@given(case=meta_cases(at_least=2, exact=True))
def test_a_net_from_meta_trains_as_the_unsharded_model(trial: Trial, case: MetaCase) -> None:
    """With weights written into its shards, a net that began on meta trains as the unsharded model, bit for bit."""
    follows(trial, FromMeta.play, expected(case))


@requirement("meta/full-state", Feature.FULLY_SHARD, Feature.META_DEVICE, Feature.STATE_DICT, ranks=2)
@given(case=meta_cases(at_least=2, exact=True))
def test_a_net_on_meta_is_loaded_from_a_full_state_of_every_rank(trial: Trial, case: MetaCase) -> None:
    """Loaded from a full state dict that every rank has, a net that began on meta trains as the unsharded model."""
    follows(trial, FromFullState.play, expected(case))


@requirement("meta/forward-is-refused", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C15")
@given(case=cases_in_part())
def test_forward_is_refused_while_parameters_are_on_meta(trial: Trial, case: MetaCase) -> None:
    """Forward, while a parameter is still on meta, raises an error that names it, the device or the way off it."""
    trial.refuses(forward_too_early, case, "meta device", "materialize", "to_empty", *names_left_on_meta(case))


@requirement("meta/refusal-names-parameters", Feature.FULLY_SHARD, Feature.META_DEVICE, source="C15")
@example(case=MetaCase(1, Stack(2, ("linear", "linear")), (0, 1), axes=("dp",)))
@given(case=cases_in_part())
def test_the_refusal_names_the_parameters_that_are_on_meta(trial: Trial, case: MetaCase) -> None:
    """The error names exactly the parameters still on meta of the group that comes first, and none that has memory."""
    for number, refusal in enumerate(trial.run(refused, case, forward_too_early)):
        named = names_in(refusal["message"], case) if refusal else []
        trial.agree(f"rank {number}, parameters named", named, names_left_on_meta(case))


@requirement("meta/2d-sharding-keeps-meta", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases(even=False))
def test_parameters_cut_by_two_axes_on_meta_stay_there(trial: Trial, case: MetaCase) -> None:
    """After tensor parallelism and fully_shard on meta, parameters are DTensors on meta, cut by both axes."""
    lie(trial, case, on_meta, device="meta")


@requirement("meta/2d-to-empty", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases(even=False))
def test_to_empty_gives_parts_cut_by_two_axes_memory(trial: Trial, case: MetaCase) -> None:
    """After to_empty, parameters cut by tensor parallelism and fully_shard lie on the device, cut as before."""
    lie(trial, case, materialized)


@requirement("meta/2d-reset-parameters", *TWO_AXES, ranks=2, source="C14")
@given(case=two_axis_cases(even=False))
def test_reset_parameters_writes_parts_cut_by_two_axes(trial: Trial, case: MetaCase) -> None:
    """Under tensor parallelism too, reset_parameters of each module writes every element of every shard and buffer."""
    everything_is_written(trial, case)


@requirement("meta/2d-training", *TWO_AXES, ranks=2, source="C14")
@example(case=MetaCase(4, Stack(3, ("mlp",)), (0,), "float32", exact=True, mesh=(2, 2), steps=1))
@given_half(case=two_axis_cases(exact=True))
def test_a_tensor_parallel_net_from_meta_trains_as_the_unsharded_model(trial: Trial, case: MetaCase) -> None:
    """With weights written into its parts, a tensor-parallel net that began on meta trains as the unsharded model."""
    follows(trial, FromMeta.play, expected(case))


def everything_is_written(trial: Trial, case: MetaCase) -> None:
    """Require that no parameter and no buffer keeps an element of what was there before."""
    names = [*case.full(), *dict(case.build().named_buffers())]
    finds(trial, left_unwritten, case, dict.fromkeys(names, False))
