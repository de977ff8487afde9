"""The training example does what its page says: sharded curves are the unsharded one, also across a checkpoint."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from examples.training.train import arguments, train
from harness.vendor.load import Subject
from harness.worlds.make import open_world
from harness.worlds.rank import Rank
from tests import ROOT
from tests.patience import GUARD

EXAMPLE = ROOT / "examples/training"
SHARDED = ("torch", "reference")
#: How far a loss may be from the unsharded one: the unit roundoff of bfloat16. It is a mean, and so is further in than
#: what it is a mean of.
TOLERANCE = 2**-9
HALF, ALL = 4, 8
MOST_LINES, MOST_BYTES = 225, 60_000

Losses = list[dict[str, Any]]


def read(path: Path) -> Losses:
    """What the example wrote, a dict a step."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def trained(rank: Rank, words: list[str]) -> None:
    """A program: the example on this rank, with these options."""
    train(arguments(words))


def on_ranks(ranks: int, words: list[str]) -> None:
    """Have so many processes train."""
    with open_world("processes", ranks, Subject("torch", "gloo")) as world:
        outcomes = world.run(trained, words, deadline=GUARD)
    assert [outcome.error for outcome in outcomes] == [""] * ranks, outcomes


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Losses]:
    """The losses of each implementation: of two ranks, then of four from their checkpoint; of one for ``none``."""
    folder = tmp_path_factory.mktemp("training")
    shared = ["--size", "small", "--device", "cpu", "--losses"]
    train(arguments([*shared, str(folder / "none.jsonl"), "--implementation", "none", "--until", str(ALL)]))
    for name in SHARDED:
        words = [*shared, str(folder / f"{name}.jsonl"), "--implementation", name]
        on_ranks(2, [*words, "--until", str(HALF), "--save", str(folder / name)])
        on_ranks(4, [*words, "--until", str(ALL), "--resume", str(folder / name)])
    return {name: read(folder / f"{name}.jsonl") for name in (*SHARDED, "none")}


def test_four_ranks_go_on_where_two_ended(curves: dict[str, Losses]) -> None:
    """Each step is trained once, the first half on two ranks and the second on four; and something is learnt."""
    for name in SHARDED:
        steps = [(line["step"], line["ranks"]) for line in curves[name]]
        assert steps == [(step, 2 if step < HALF else 4) for step in range(ALL)]
        assert curves[name][-1]["loss"] < curves[name][0]["loss"] - 0.2


def test_the_reference_trains_as_torch_to_the_last_bit(curves: dict[str, Losses]) -> None:
    """Losses and norms of gradients are the same numbers."""
    assert curves["reference"] == curves["torch"]


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_losses_are_the_unsharded_ones(name: str, curves: dict[str, Losses]) -> None:
    """To within the rounding of bfloat16, before the checkpoint and after."""
    whole = [line["loss"] for line in curves["none"]]
    assert [line["loss"] for line in curves[name]] == pytest.approx(whole, abs=TOLERANCE)


def test_a_step_from_another_state_is_told_apart(curves: dict[str, Losses]) -> None:
    """The tolerance sees the wrong state: each step of training changes the loss by more, so none was left out."""
    losses = [line["loss"] for line in curves["none"]]
    assert all(abs(a - b) > TOLERANCE for a, b in itertools.pairwise(losses))


def test_the_page_tells_what_was_measured() -> None:
    """The largest differences in README.md are those of ``measured/``, which the picture shows."""
    runs = {name: [line["loss"] for line in read(EXAMPLE / f"measured/{name}.jsonl")] for name in (*SHARDED, "none")}
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for left, right in (("torch", "reference"), ("none", "torch"), ("none", "reference")):
        most = max(abs(a - b) for a, b in zip(runs[left], runs[right], strict=True))
        assert f"| {left} | {right} | {most:.2g} |" in page


def test_the_example_is_short() -> None:
    """It can be read in ten minutes, and its picture is small."""
    files = sorted(EXAMPLE.glob("*.py"))
    assert len(files) <= 4
    assert len([line for path in files for line in path.read_text("utf-8").splitlines() if line]) <= MOST_LINES
    assert (EXAMPLE / "measured/training.svg").stat().st_size < MOST_BYTES
