"""A suite whose second row never ends, and says so to whoever listens. Run by ``test_interrupted_runs.py``."""

from __future__ import annotations

import os
import threading

import torch.distributed as dist

from harness.requirement import requirement
from harness.trial import Trial
from harness.worlds.rank import Rank
from tests.plugin.samples import Number


def hang_and_say_so(rank: Rank, case: Number) -> None:
    """Rank 1 writes its process to the pipe named by ``SAMPLE_PIPE``, and never comes back."""
    if rank.number == 1:
        with open(os.environ["SAMPLE_PIPE"], "w") as pipe:
            pipe.write(f"{os.getpid()}\n")
        threading.Event().wait()
    dist.barrier()


@requirement("endless/first")
def test_comes_first(trial: Trial) -> None:
    """The first row is there."""
    trial.holds(True, "it is there")


@requirement("endless/second")
def test_never_ends(trial: Trial) -> None:
    """The second row is not."""
    trial.run(hang_and_say_so, Number())
