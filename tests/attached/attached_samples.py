"""A small suite for two ranks that a launcher has started. ``test_attached.py`` runs it, and ends its last row."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch.distributed as dist

from harness.records.record import Verdict
from harness.requirement import requirement
from harness.trial import Trial
from harness.worlds.rank import Rank
from tests.plugin.samples import Number, total
from tests.run_command.endless_samples import hang_and_say_so

#: What becomes of each row but the last: verdict, cause, and the start of its message.
ENDS = {
    "samples/passes": (Verdict.PASS, "", ""),
    "samples/disagrees": (Verdict.FAIL, "disagreement", "rank 0: it is 2"),
    "samples/dies": (Verdict.FAIL, "crashed", "rank 1 of 2 failed first (crashed): killed by SIGKILL"),
    "samples/after-a-death": (Verdict.PASS, "", ""),
    "samples/three-ranks": (Verdict.NOT_RUN, "", "needs 3 ranks in the attached world; the launcher offers 2 here"),
}


def where(rank: Rank, case: Number) -> list[Any]:
    """How this rank was told what it is."""
    dist.barrier()
    return [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]


def die(rank: Rank, case: Number) -> None:
    """Rank 1 is killed while rank 0 waits for it."""
    if rank.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


@requirement("samples/passes", ranks=2)
def test_passes(trial: Trial) -> None:
    """Each rank knows what it is."""
    alone = [["0", "2", "0", "1"], ["1", "2", "0", "1"]]
    trial.holds(trial.run(where, Number()) == alone, "each is alone on its node")
    trial.holds(trial.run(total, Number())[1].item() == 2, "both are counted")


@requirement("samples/disagrees", ranks=2)
def test_disagrees(trial: Trial) -> None:
    """Two are three."""
    for number, value in enumerate(trial.run(total, Number())):
        trial.holds(value.item() == 3, f"rank {number}: it is {value.item():g}")


@requirement("samples/dies", ranks=2)
def test_dies(trial: Trial) -> None:
    """Nobody dies."""
    trial.run(die, Number())


@requirement("samples/after-a-death", ranks=2)
def test_goes_on(trial: Trial) -> None:
    """The next row is unharmed."""
    trial.holds(len(trial.run(total, Number())) == 2, "both are there")


@requirement("samples/three-ranks", ranks=3)
def test_needs_three(trial: Trial) -> None:
    """There are not so many."""
    trial.run(total, Number(world_size=3))


@requirement("samples/endless", ranks=2)
def test_never_ends(trial: Trial) -> None:
    """The last row is never written."""
    trial.run(hang_and_say_so, Number())
