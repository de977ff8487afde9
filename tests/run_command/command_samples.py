"""A suite for the ``run`` command: a row that depends on who is judged, and two about signals to pytest itself."""

from __future__ import annotations

import os
import signal

from harness.requirement import requirement
from harness.trial import Trial


@requirement("command/subject", worlds=("threads",))
def test_the_reference_alone_passes(trial: Trial) -> None:
    """The reference is judged."""
    trial.holds(trial.subject.implementation == "reference", "the reference is judged")


@requirement("command/killed", worlds=("threads",))
def test_kills_pytest(trial: Trial) -> None:
    """pytest is alive."""
    os.kill(os.getpid(), signal.SIGKILL)


@requirement("command/stubborn", worlds=("threads",))
def test_is_interrupted_by_the_second_ctrl_c(trial: Trial) -> None:
    """Writes a line to the pipe named by ``SAMPLE_PIPE`` when it is ready, and at each SIGINT."""
    pipe = os.open(os.environ["SAMPLE_PIPE"], os.O_WRONLY)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.set_wakeup_fd(writing)  # whenever a signal comes, there is a byte
    os.write(pipe, b"ready\n")
    for number in (1, 2):
        os.read(reading, 1)
        os.write(pipe, b"%d\n" % number)
    raise KeyboardInterrupt
