"""One test on one subject: running programs on ranks, judging results, the verdict, and rerunning a failing case."""

from harness.trial.trial import Sized as Sized
from harness.trial.trial import TimeIsUp as TimeIsUp
from harness.trial.trial import Trial as Trial
from harness.trial.trial import most_ranks as most_ranks
from harness.trial.trial import refused as refused
