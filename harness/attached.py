"""Run pytest where a launcher has started the ranks: rank 0's process runs it, the others do what it asks of them.

    torchrun --nnodes=2 --nproc-per-node=8 … -m fsdp_conformance attached -- pytest suites --record run.jsonl
    MASTER_ADDR=… MASTER_PORT=… srun --ntasks-per-node=8 python -m fsdp_conformance attached -- pytest suites
    mpiexec -n 8 python -m fsdp_conformance attached -- pytest suites

Started once for each rank, with the variables of torchrun, srun (SLURM_*) or mpiexec (OMPI_COMM_WORLD_*, PMI_*).
Without ``--world``, requirements run in the attached world: a case for fewer ranks than there are takes one of
each node, then the next of each.
Exit status: pytest's own in rank 0's process; 0 elsewhere, or 1 if that one has ended too soon; 4 for a wrong start.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import pytest

from harness.worlds.attached import fleet as attached_fleet
from harness.worlds.attached.agent import Agent
from harness.worlds.attached.launch import Launch, launched, open_store

#: How long, in seconds, the result that an agent's end has spoilt may take to be written after SIGTERM; and how
#: long an agent serves on after SIGTERM, which the controller has received, too. Launchers wait for half a minute.
_LAST_RESULT = 5.0
_LAST_ORDERS = 10
_ASYNC = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_USAGE = int(pytest.ExitCode.USAGE_ERROR)


def main(arguments: Sequence[str]) -> int:
    """Be the controller or an agent, whichever the launcher has made of this process."""
    if list(arguments) in (["-h"], ["--help"]):
        _parser().parse_args(["--help"])
    try:
        args = pytest_arguments(arguments)
        launch = launched(os.environ)
    except ValueError as error:
        return _failed(error, _USAGE)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _under_torchrun()
    try:
        return _control(launch, args) if launch.rank == 0 else _serve(launch)
    except (OSError, RuntimeError) as error:  # torch's store raises RuntimeError
        return _failed(error, 1)


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="fsdp-conformance attached",
        usage="fsdp-conformance attached -- pytest ARGUMENT …",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """What pytest is called with. A node id of a row in processes or threads is taken for the same test, attached."""
    words = list(arguments)
    if words[:1] == ["--"]:
        words = words[1:]
    if words[:1] != ["pytest"]:
        raise ValueError(f"expected `-- pytest ARGUMENTS`, got {' '.join(arguments)!r}")
    args = words[1:]
    worlds = [arg for arg in args if arg == "--world" or arg.startswith("--world=")]
    if worlds and "attached" not in args and "--world=attached" not in args:
        return args
    return [*map(_attached, args), *([] if worlds else ["--world=attached"])]


def _attached(arg: str) -> str:
    return re.sub(r"(?<=\[)(threads|processes)(?=[\]-])", "attached", arg) if "::" in arg else arg


def _failed(error: Exception, status: int) -> int:
    print(f"fsdp-conformance attached: {error}", file=sys.stderr)
    return status


def _under_torchrun() -> None:
    """Have the kernel send SIGTERM if torchrun is killed; and undo what it sets for all ranks."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.environ.get(_ASYNC) == "1":  # ranks that NCCL ends would not show their stacks: worlds set it otherwise
        del os.environ[_ASYNC]


def _serve(launch: Launch) -> int:
    """Ctrl-C reaches all processes of a launch: what comes of it, the controller decides."""
    line = attached_fleet.join(launch, open_store(launch))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_LAST_ORDERS) and None)
    if Agent(line).serve():
        return 0
    return _failed(ConnectionError(f"the agent of rank {launch.rank} ends, since the controller is gone"), 1)


def _control(launch: Launch, args: list[str]) -> int:
    fleet = attached_fleet.gather(launch, open_store(launch))
    attached_fleet.use(fleet)
    stopping = _Stopping(fleet)
    signal.signal(signal.SIGTERM, stopping.on_signal)
    try:
        return int(pytest.main(args, plugins=[stopping]))
    finally:
        is_whole = not fleet.lost()
        fleet.close()
        sys.stdout.flush()
        if launch.mpiexec is not None:
            launch.mpiexec.leave() if is_whole else launch.mpiexec.abort()


class _Stopping:
    """Told to end by SIGTERM, as launchers do, the run ends as after Ctrl-C: with a footer, and with nothing left.

    torchrun does so when one of its processes has died. If that was an agent, the row that it has spoilt comes first.
    """

    def __init__(self, fleet: attached_fleet.Fleet) -> None:
        self._fleet = fleet
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Know whom to stop."""
        self._session = session

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Stop now, or after the row in hand."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what ends now is not to be disturbed
        lost = self._fleet.lost()
        if self._session is None or not lost:
            raise KeyboardInterrupt("ended by SIGTERM")
        self._session.shouldstop = f"ended by SIGTERM; {'; '.join(lost)}"
        timer = threading.Timer(_LAST_RESULT, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
