"""A small suite whose subject says what would like to be markup, code or orders to a terminal; other tests run it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from harness.data.case import Case
from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Backend, Feature, Implementation
from harness.worlds.rank import Rank
from tests.report.report_samples import HOSTILE
from tests.waivers.stanzas import stanza

BAD = f"{HOSTILE}\x1b]0;owned\x07\x1b[2J\x9b2J\x7f\u2028\r\nsecond line\x08\x08"
implementation = Implementation(
    name="hostile",
    claims=frozenset({Feature.FULLY_SHARD}),
    fully_shard=lambda module, **_: module,
    not_claimed={Feature.HSDP: BAD},
)
backend = Backend(name="small", ranks=1, thread_ranks=1, lacks={"pinned memory": BAD})

WAIVERS = stanza(
    "hostile/known",
    "hostile",
    issue='javascript:alert(1)"><img src=x onerror=alert(1)>\x1b[2J',
    reason="<script>alert(1)</script>\u202e",
) + stanza("hostile/\x1b[2J<script>alert(1)</script>", "hostile", issue="x", reason="matches nothing")


@dataclass(frozen=True)
class Worded(Case):
    """A case with words in it."""

    words: str = BAD
    world_size: int = 1


def speak(rank: Rank, case: Worded) -> str:
    """Say it and return it."""
    print(case.words, file=sys.stderr)
    return case.words


def shout(rank: Rank, case: Worded) -> None:
    """Raise it, by an error of that name."""
    speak(rank, case)
    raise type(f"Bad{BAD}", (Exception,), {})(case.words)


def leave(rank: Rank, case: Worded) -> None:
    """Write it to the log and be gone."""
    speak(rank, case)
    os._exit(3)


@requirement("hostile/raises", Feature.FULLY_SHARD)
@example(case=Worded())
@given(case=st.builds(Worded, st.just(BAD)))
def test_raises_what_is_no_message(trial: Trial, case: Worded) -> None:
    """What is raised is text."""
    trial.run(shout, case)


@requirement("hostile/returns", Feature.FULLY_SHARD)
def test_returns_what_is_no_answer(trial: Trial) -> None:
    """What is returned is text."""
    trial.agree("rank 0", trial.run(speak, Worded())[0], "text")


@requirement("hostile/holds", Feature.FULLY_SHARD)
def test_holds_what_is_no_sentence(trial: Trial) -> None:
    """What does not hold is told as text."""
    trial.holds(False, f"{trial.run(speak, Worded())[0]}")


@requirement("hostile/leaves", Feature.FULLY_SHARD)
def test_leaves_what_is_no_log(trial: Trial) -> None:
    """What is logged is text."""
    trial.run(leave, Worded())


@requirement("hostile/known", Feature.FULLY_SHARD)
def test_is_known_to_be_hostile(trial: Trial) -> None:
    """What is waived is text."""
    trial.holds(False, BAD)


@requirement("hostile/unclaimed", Feature.HSDP)
def test_is_not_claimed(trial: Trial) -> None:
    """What is not claimed is told as text."""


@requirement("hostile/limited", Feature.FULLY_SHARD, limits=("pinned memory",))
def test_is_not_possible_here(trial: Trial) -> None:
    """What is not possible is told as text."""
