"""A small suite whose results end in every possible way, and the subject that it judges. Run by ``test_plugin.py``.

``ENDS`` has the expected verdict, cause and message (a regular expression) of each.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st

from harness.data.case import Case
from harness.records.record import Verdict
from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Backend, Feature, Implementation
from harness.worlds.rank import Rank
from tests.waivers.stanzas import stanza

implementation = Implementation(
    name="sample",
    claims=frozenset({Feature.FULLY_SHARD}),
    fully_shard=lambda module, **_: module,
    not_claimed={Feature.HSDP: "this machine has one axis"},
)
empty_claim = Implementation(name="empty", claims=frozenset({Feature.CHECKPOINT}))
both_ways = Implementation(
    name="both", claims=frozenset({Feature.FULLY_SHARD}), fully_shard=print, not_claimed={Feature.FULLY_SHARD: "no"}
)
not_an_implementation = "torch"
backend = Backend(name="small", ranks=2, thread_ranks=2, lacks={"pinned memory": "there is none to pin"})
device = Backend(name="device", device_type="cuda", process_group="nccl", start_method="spawn")

ENDS = {
    "passes": (Verdict.PASS, "", ""),
    "disagrees": (Verdict.FAIL, "disagreement", r"rank 0: it is 2.0, expected 1.0"),
    "draws": (Verdict.FAIL, "raised", r"rank 1 of 2 failed first \(raised\): ArithmeticError: 3 is too much"),
    "skips": (Verdict.BROKEN, "skip", "a claimed requirement was skipped"),
    "checks-nothing": (Verdict.BROKEN, "vacuous", "without one effective check"),
    "errs": (Verdict.BROKEN, "broken", "ZeroDivisionError"),
    "unclaimed": (Verdict.NOT_CLAIMED, "", "HSDP: this machine has one axis"),
    "unmentioned": (Verdict.NOT_CLAIMED, "", "tensor parallel: not mentioned by the implementation"),
    "many-ranks": (Verdict.NOT_RUN, "", "needs 3 ranks in the .* world; backend 'small' offers 2 here"),
    "large-cases": (Verdict.NOT_RUN, "", "every case needs more ranks than the 2 that there are; the smallest 3"),
    "large-case": (Verdict.NOT_RUN, "", "every case needs more ranks than the 2 that there are; the smallest 4"),
    "one-large-case": (Verdict.PASS, "", ""),
    "limited": (Verdict.NOT_RUN, "", "needs pinned memory .*: there is none to pin"),
    "known": (Verdict.WAIVED, "disagreement", "known to be off"),
    "healed": (Verdict.STALE_WAIVER, "", "passes, but is waived .*: remove the waiver"),
    "overdue": (Verdict.STALE_WAIVER, "disagreement", "its waiver .* ran out on 2001-01-01: off"),
    "hangs": (Verdict.FAIL, "hung", "ended because the test's timeout of 2 s passed"),
    "after-a-hang": (Verdict.PASS, "", ""),
    "leaves-badly": (Verdict.FAIL, "crashed", "after its work was done, .*exit code 7 while leaving"),
    "after-a-crash": (Verdict.PASS, "", ""),
}

WAIVERS = (
    stanza("samples/known", "sample")
    + stanza("samples/healed", "sample")
    + stanza("samples/overdue", "sample", expires="2001-01-01")
    + stanza("samples/nowhere", "sample")
)


@dataclass(frozen=True)
class Number(Case):
    """A number for two ranks."""

    number: int = 0
    world_size: int = 2


def total(rank: Rank, case: Number) -> Any:
    """Add one over all ranks."""
    one = torch.ones(())
    dist.all_reduce(one)
    return one


def too_much(rank: Rank, case: Number) -> int:
    """Rank 1 cannot count to three."""
    if rank.number == 1 and case.number >= 3:
        raise ArithmeticError(f"{case.number} is too much")
    return case.number


def hang(rank: Rank, case: Number) -> None:
    """Rank 1 never comes back."""
    if rank.number == 1:
        threading.Event().wait()
    dist.barrier()


def leave_badly(rank: Rank, case: Number) -> int:
    """Rank 1's process aborts on its way out."""
    if rank.number == 1:
        atexit.register(os._exit, 7)
    return rank.number


@requirement("samples/passes", Feature.FULLY_SHARD)
def test_ranks_add_up(trial: Trial) -> None:
    """Two ranks add up to two."""
    trial.agree("all", trial.run(total, Number()), [torch.tensor(2.0)] * 2)


@requirement("samples/disagrees", Feature.FULLY_SHARD)
def test_ranks_do_not_add_up(trial: Trial) -> None:
    """Two ranks add up to one, which is wrong."""
    for number, got in enumerate(trial.run(total, Number())):
        trial.agree(f"rank {number}", got, torch.tensor(1.0))


@requirement("samples/draws", Feature.FULLY_SHARD)
@given(case=st.builds(Number, st.integers(0, 1000)))
def test_every_number_is_fine(trial: Trial, case: Number) -> None:
    """Every number is fine, which is wrong from three on."""
    trial.holds(trial.run(too_much, case) == [case.number] * 2, "the number comes back")


@requirement("samples/large-cases", Feature.FULLY_SHARD)
@given(case=st.builds(Number, world_size=st.integers(3, 5)))
def test_numbers_on_many_ranks_come_back(trial: Trial, case: Number) -> None:
    """On three to five ranks, numbers come back."""
    trial.holds(bool(trial.run(too_much, case)), "the number comes back")


@requirement("samples/large-case", Feature.FULLY_SHARD)
def test_a_number_on_four_ranks_comes_back(trial: Trial) -> None:
    """On four ranks, a number comes back."""
    trial.holds(bool(trial.run(too_much, Number(world_size=4))), "the number comes back")


@requirement("samples/one-large-case", Feature.FULLY_SHARD)
@example(case=Number(world_size=4))
@given(case=st.builds(Number, st.integers(0, 2)))
def test_small_numbers_come_back(trial: Trial, case: Number) -> None:
    """Numbers below three come back."""
    trial.holds(trial.run(too_much, case) == [case.number] * 2, "the number comes back")


@requirement("samples/skips", Feature.FULLY_SHARD)
def test_skips_what_it_claims(trial: Trial) -> None:
    """What is claimed is not skipped."""
    pytest.skip("not today")


@requirement("samples/checks-nothing", Feature.FULLY_SHARD)
def test_runs_and_looks_at_nothing(trial: Trial) -> None:
    """What is run is looked at."""
    trial.run(total, Number())


@requirement("samples/errs", Feature.FULLY_SHARD)
def test_errs_in_the_controller(trial: Trial) -> None:
    """An error of the suite is not the subject's."""
    trial.holds(1 / 0 > 0, "unreachable")


@requirement("samples/unclaimed", Feature.HSDP)
def test_is_about_a_disclaimed_feature(trial: Trial) -> None:
    """A second axis replicates."""


@requirement("samples/unmentioned", Feature.TENSOR_PARALLEL, level="should")
def test_is_about_an_unmentioned_feature(trial: Trial) -> None:
    """Tensors are parallel."""


@requirement("samples/many-ranks", Feature.FULLY_SHARD, ranks=3, level="may")
def test_needs_many_ranks(trial: Trial) -> None:
    """Three ranks are more than two."""


@requirement("samples/limited", Feature.FULLY_SHARD, limits=("pinned memory",))
def test_needs_pinned_memory(trial: Trial) -> None:
    """Memory can be pinned."""


@requirement("samples/known", Feature.FULLY_SHARD)
def test_is_known_to_fail(trial: Trial) -> None:
    """Nothing is off."""
    trial.holds(False, "known to be off")


@requirement("samples/healed", Feature.FULLY_SHARD)
def test_passes_though_waived(trial: Trial) -> None:
    """Nothing is off any more."""
    trial.holds(True, "fine")


@requirement("samples/overdue", Feature.FULLY_SHARD)
def test_fails_with_an_expired_waiver(trial: Trial) -> None:
    """Nothing stays off for ever."""
    trial.holds(False, "off")


@pytest.fixture
def ready(trial: Trial) -> None:
    """Ranks are there before the test's own time counts."""
    trial.run(too_much, Number())


@pytest.mark.timeout(2, func_only=True)
@pytest.mark.usefixtures("ready")
@requirement("samples/hangs", Feature.FULLY_SHARD)
def test_hangs(trial: Trial) -> None:
    """Ranks come back."""
    trial.run(hang, Number())


@requirement("samples/after-a-hang", Feature.FULLY_SHARD)
def test_runs_after_one_that_hung(trial: Trial) -> None:
    """A hang is one result."""
    trial.agree("all", trial.run(total, Number()), [torch.tensor(2.0)] * 2)


@requirement("samples/leaves-badly", Feature.FULLY_SHARD)
def test_does_not_leave_cleanly(trial: Trial) -> None:
    """Ranks leave with exit code 0."""
    trial.agree("all", trial.run(leave_badly, Number()), [0, 1])


@requirement("samples/after-a-crash", Feature.FULLY_SHARD)
def test_runs_after_one_that_crashed(trial: Trial) -> None:
    """A crash is one result."""
    trial.agree("all", trial.run(total, Number()), [torch.tensor(2.0)] * 2)
