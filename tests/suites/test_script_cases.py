"""Scripts: always legal, short once they have shrunk, the same when they come back from JSON; and their oracle."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import find, given, settings
from torch import Tensor

from harness.data.comparison import difference
from suites.generated.net_cases import Group
from suites.generated.net_strategies import generated_cases
from suites.kit.hsdp import hsdp_meshes
from suites.kit.nets import Block
from suites.oracle.expected import Expected, tensors_of
from suites.oracle.situation import AUTOMATIC, MANUAL
from suites.oracle.unsharded import State, played
from suites.scripts import strategies as draws
from suites.scripts.acts import ACTS, Play
from suites.scripts.cases import ScriptCase, owners, plain
from suites.scripts.programs import ShardedScript
from suites.scripts.state import MOST_EXACT_STEPS
from suites.scripts.strategies import COUNTS, exact_scripts, scripts, small_cases, walk, wishes, without
from suites.scripts.unsharded import UnshardedScript, expected

ALL = (
    draws.TRAINING, draws.LOOKING, draws.SETTING, draws.GATHERING, draws.KEEPING, draws.STATE, draws.META,
    draws.FREEZING, draws.ACCUMULATING, draws.FINALIZING, draws.ALONE, draws.CUT, draws.ABANDONING, draws.OWNING,
    draws.REPEATING, draws.TOGGLING, draws.DIVIDING, draws.CANCELLING,
)  # fmt: skip
GENERAL = scripts(small_cases("embedding", "uneven", "frozen"), *ALL)
REPLICAS = generated_cases(nets=draws.plain_nets, batch=1, meshes=hsdp_meshes(2, power_of_two=True))
EXACT = scripts(REPLICAS, *ALL, draws.IN_SHARDS, dtype="float64") | exact_scripts(*ALL)
ANY_SCRIPT = GENERAL | EXACT

PLAIN = plain()


def after(*done: str) -> Play:
    """What is known after these acts."""
    play = Play(PLAIN)
    for act in done:
        play.do(act)
    return play


@given(case=ANY_SCRIPT)
def test_scripts_are_legal(case: ScriptCase) -> None:
    """Every act that is drawn is legal where it comes, and there are ten at most."""
    play = Play(case)
    for act in case.acts:
        play.do(act)
    assert len(case.acts) <= 10
    assert not case.exact or play.steps <= MOST_EXACT_STEPS


@given(wished=wishes(*ALL), counts=COUNTS)
def test_whatever_is_left_out_of_scripts_they_are_legal(wished: list[str], counts: list[int]) -> None:
    """A script from which acts are taken away is legal: what needs them goes with them, and the others stay."""
    done = walk(PLAIN, wished)
    left = without(PLAIN, done, counts)
    after(*left)
    assert without(PLAIN, done, [1] * 10) == done
    assert all(act in done for act in left)


@pytest.mark.parametrize(
    ("act", "shortest"),
    [
        ("step", ("forward", "backward all", "step")),
        ("load full", ("save", "forward", "backward all", "step", "load full")),
        ("begin", ("begin",)),
        ("restart sharded", ("save", "restart sharded")),
        ("accumulate", ("accumulate",)),
        ("finalize", (MANUAL, "forward", "backward oldest", "finalize")),
    ],
)
def test_a_script_that_fails_shrinks_to_what_leads_to_the_failure(act: str, shortest: tuple[str, ...]) -> None:
    """Of scripts that fail in one kind of act, what is left is that act and the acts without which it is not legal."""
    quietly = settings(database=None, derandomize=True, max_examples=2000)
    found = find(exact_scripts(*ALL), lambda case: act in case.acts, settings=quietly)
    assert found.acts == shortest
    assert found.net.blocks == (Block("linear"),)
    assert found.groups == (Group(),)


def test_a_fault_between_two_acts_shrinks_to_these_two() -> None:
    """A defect that shows when a step follows an explicit unshard, whatever is done besides, is left with those."""

    def fails(case: ScriptCase) -> bool:
        kinds = [act.split()[0] for act in case.acts]
        return "step" in kinds and "unshard" in kinds[: kinds.index("step")]

    quietly = settings(database=None, derandomize=True, max_examples=2000)
    found = find(exact_scripts(*ALL), fails, settings=quietly)
    assert sorted(act.split()[0] for act in found.acts) == ["backward", "forward", "step", "unshard"]


@pytest.mark.parametrize(
    "done",
    [
        ("backward oldest",),
        ("step",),
        ("forward", "step"),
        ("forward", "forward", "forward"),
        ("accumulate", "drop"),
        ("accumulate", "freeze blocks.0"),
        ("load full",),
        ("save", "forward", "load full"),
        ("forward", "freeze blocks.0"),
        ("freeze blocks.0", "freeze blocks.1"),
        ("thaw blocks.0",),
        ("forward", "backward oldest", "unshard blocks.0", "step", "forward"),
        ("forward", "backward oldest", "begin blocks.0", "step"),
        ("wait",),
        ("save", "save"),
        ("save", "recall full"),
        ("clip 0.125",),
        ("finalize",),
        (AUTOMATIC,),
        ("forward", MANUAL),
        (MANUAL, "accumulate"),
        (MANUAL, "forward", "backward oldest", "step"),
        (MANUAL, "forward", "backward oldest", "reshard"),
        (MANUAL, "save", "restart full"),
    ],
)
def test_what_is_not_legal_is_not_played(done: tuple[str, ...]) -> None:
    """The last of these acts has no meaning that all would agree on, and is refused."""
    play = after(*done[:-1])
    with pytest.raises(ValueError, match="not legal"):
        play.do(done[-1])


@pytest.mark.parametrize("kind", ACTS)
def test_every_act_is_played_on_both_sides(kind: str) -> None:
    """Each act has a method of its own on ranks, and on the unsharded model unless it is nothing to that."""

    nothing = {"unshard", "begin", "cancel", "reshard", "keep", "free"}
    assert callable(getattr(ShardedScript, kind))
    assert hasattr(UnshardedScript, kind) != (kind in nothing)


def test_parameters_are_owned_by_the_deepest_group_around_them() -> None:
    """A block that is sharded by itself has its own parameters, and the root what is left."""
    assert owners(PLAIN) == {
        "blocks.0.weight": "blocks.0",
        "blocks.0.bias": "blocks.0",
        "blocks.1.weight": "",
        "blocks.1.bias": "",
    }


def test_what_is_known_of_forms() -> None:
    """After a forward the root is whole, after backward nothing is; what is whole in a step is not read any more."""
    whole = {"blocks.1.weight", "blocks.1.bias"}
    assert set(after("forward").readable()) == whole
    assert after("forward", "backward oldest").readable() == []
    assert after("forward", "save").is_sharded
    assert set(after("forward", "backward oldest", "evaluate").readable()) == whole
    assert after("forward", "backward oldest", "evaluate", "step").readable() == []
    assert "blocks.0.weight" not in after("begin blocks.0").registered()


def test_the_oracle_adds_up_what_waits_and_takes_the_mean_over_ranks() -> None:
    """Gradients of a pass without reduction are not looked at, and count in full with the next that reduces."""
    [first, _, last] = expected(plain("accumulate", "forward", "backward oldest")).wide
    name, case = "blocks.0.weight", PLAIN
    net = case.build()
    for batch in range(2):
        for rank in range(2):
            (case.losses(case.run(net, batch, rank, torch.float64), batch, rank)[0] / 2).backward()
    assert name not in first["gradients"]
    assert torch.equal(last["gradients"][name], net.get_parameter(name).grad)


def test_the_oracle_gives_back_what_was_saved() -> None:
    """A load brings back values and not momenta, which a recall brings back; a new net has what was saved."""
    done = ("forward", "backward oldest", "step", "save", "step", "load full", "recall sharded", "restart full")
    entries = expected(plain(*done)).wide
    saved, stepped, loaded, recalled, renewed = entries[3:]
    name, key = "blocks.0.weight", "momentum_buffer"
    assert torch.equal(loaded["parameters"][name], saved["parameters"][name])
    assert torch.equal(loaded["optimizer"][name][key], stepped["optimizer"][name][key])
    assert torch.equal(recalled["optimizer"][name][key], saved["optimizer"][name][key])
    assert renewed["gradients"][name] is None
    assert torch.equal(renewed["parameters"][name], saved["parameters"][name])


@given(case=EXACT)
def test_exact_scripts_are_exact(case: ScriptCase) -> None:
    """All numbers are multiples of 2**-24 below 2**28 with two bits to spare, so no sum of them is ever rounded."""
    entries = played(case, model=UnshardedScript)
    for name, tensor in tensors_of(entries):
        fine = tensor * 2.0**24
        assert torch.equal(fine, fine.round()), name
        assert tensor.numel() == 0 or float(tensor.abs().max()) < 2.0**28, name


def off(want: Expected, entries: list[State], place: int) -> bool:
    """Whether what was played differs in one act from what is expected by more than is allowed."""
    got = copy.copy(want)
    got.wide = entries
    return difference(got.on_rank(place, 0), want.on_rank(place, 0), want.within).too_much


@given(
    case=scripts(small_cases("frozen", "norms"), draws.TRAINING, draws.LOOKING, draws.SETTING, draws.FREEZING).filter(
        lambda case: case.dtype == "float32"
    )
)
def test_rounding_is_allowed_in_scripts(case: ScriptCase) -> None:
    """Played in float32, a script agrees with its oracle after every act."""
    want, entries = expected(case), played(case, working=True, model=UnshardedScript)
    assert not any(off(want, entries, place) for place in range(len(case.acts)))


@given(case=GENERAL)
def test_a_wrong_scale_is_not_allowed_in_scripts(case: ScriptCase) -> None:
    """A script whose gradients are a thousandth too large is off as soon as there are some that are not zero."""
    want = expected(case)
    for place, entry in enumerate(want.wide):
        if "gradients" not in entry:
            continue  # not looked at before backwards are finalized
        grown = {name: g if g is None else scaled(g) for name, g in entry["gradients"].items()}
        differs = any(g is not None and g.any() for g in want.on_rank(place, 0)["gradients"].values())
        assert off(want, [{**each, "gradients": grown} for each in want.wide], place) == differs


def scaled(gradient: Tensor) -> Tensor:
    """A thousandth more."""
    return gradient * 1.001
