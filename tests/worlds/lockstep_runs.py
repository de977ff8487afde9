"""What the tests of lockstep share: a program run on ranks that are threads of this very process."""

from __future__ import annotations

from typing import Any

from harness.vendor import Implementation
from harness.vendor.backends import gloo
from harness.vendor.torch_fsdp2 import implementation as torch
from harness.worlds.base import Fate, Outcome, Program, describe
from harness.worlds.threads.role import ThreadRanks
from tests.patience import GUARD


def run(program: Program, size: int, *args: Any, seed: int = 0, subject: Implementation = torch) -> list[Outcome]:
    """One run on fresh ranks of a subject on gloo; they are ended afterwards."""
    ranks = ThreadRanks(size, subject, gloo)
    try:
        return ranks.run(program, *args, seed=seed, deadline=GUARD)
    finally:
        ranks.close()


def values(outcomes: list[Outcome]) -> list[Any]:
    """What each rank returned, if all of them did."""
    assert all(outcome.fate is Fate.RETURNED for outcome in outcomes), describe(outcomes)
    return [outcome.value for outcome in outcomes]
