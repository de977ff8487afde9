"""One test on one subject: running programs on ranks, judging results, the verdict, and rerunning a failing case."""

from harness.trial.combinations import Excluded as Excluded
from harness.trial.ranks import Sized as Sized
from harness.trial.ranks import TimeIsUp as TimeIsUp
from harness.trial.ranks import most_ranks as most_ranks
from harness.trial.refusals import refused as refused
from harness.trial.trial import Trial as Trial
