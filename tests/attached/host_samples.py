"""A small suite for two hosts, of which ``test_hosts.py`` loses one in the second row, if that is run."""

from __future__ import annotations

from harness.requirement import requirement
from harness.trial import Trial
from tests.plugin.samples import Number, total
from tests.run_command.endless_samples import hang_and_say_so


@requirement("hosts/meet", ranks=2)
def test_hosts_meet(trial: Trial) -> None:
    """Ranks of two hosts are counted."""
    trial.holds([each.item() for each in trial.run(total, Number())] == [2, 2], "both are counted")


@requirement("hosts/loses", ranks=2)
def test_loses_a_host(trial: Trial) -> None:
    """Rank 1 waits, and then its host is lost."""
    trial.run(hang_and_say_so, Number())


@requirement("hosts/misses", ranks=2)
def test_misses_a_host(trial: Trial) -> None:
    """There is one host left."""
    trial.run(total, Number())
