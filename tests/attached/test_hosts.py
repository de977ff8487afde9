"""Ranks on two hosts: they meet over the network, and a host that is lost is named, in bounded time.

Where this machine permits no network namespaces, or has no mpiexec, these tests are skipped and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.commands.bundle import main as bundle
from harness.records.reader import Run, read_run
from harness.records.record import Verdict
from harness.records.standing import State, standing
from tests.attached.attaching import ROOT, told
from tests.attached.hosts import CannotMakeHosts, Host, two_hosts
from tests.patience import GUARD
from tests.pipes import heard, named_pipe
from tests.worlds.leftovers import is_gone

_SUITE = "tests/attached/host_samples.py"
#: What results that need the second host say when it is lost.
_LOST = "the agent of rank 1 on node 1 is gone: "
Pair = tuple[Host, Host]


@pytest.fixture
def hosts() -> Iterator[Pair]:
    """Two of them, with a cable between."""
    with ExitStack() as stack:
        try:
            pair = stack.enter_context(two_hosts())
        except CannotMakeHosts as error:
            pytest.skip(f"two hosts need network namespaces, which this machine does not permit: {error}")
        yield pair
        assert all(map(_all_end, pair)), "a process is left behind"


def _torchrun(hosts: Pair, folder: Path, args: list[str]) -> list[list[str]]:
    """One on each host. The hosts are new, so a port of theirs is free."""
    return [
        host.enter(
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={hosts[0].address}:29500", f"--local-addr={host.address}",
            f"--rdzv-conf=is_host={host is hosts[0]},read_timeout={GUARD:g}", "-m", *args,
        )
        for host in hosts
    ]  # fmt: skip


def _mpiexec(hosts: Pair, folder: Path, args: list[str]) -> list[list[str]]:
    """One on the first host, which starts a process on each. It finds a port for ranks to meet."""
    program = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        pytest.skip("there is no mpiexec here: `pip install mpich` brings one")
    first, second = hosts
    ssh = ["-launcher", "ssh", "-launcher-exec", str(second.reach(folder / "reach"))]
    both = ["-localhost", first.address, "-hosts", f"{first.address},{second.address}", "-n", "2"]
    address = ["-genv", "MASTER_ADDR", first.address]
    return [first.enter(program, *ssh, *both, *address, sys.executable, "-m", *args)]


Launcher = Callable[[Pair, Path, list[str]], list[list[str]]]


@contextmanager
def launched(launcher: Launcher, hosts: Pair, folder: Path, *args: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The launchers, one or one for each host, of a run of the sample suite that is recorded."""
    words = [
        "fsdp_conformance",
        "attached",
        "--",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        _SUITE,
        "--backend",
        "gloo",
        *args,
    ]
    words += ["--record", str(folder / "run.jsonl")]
    with ExitStack() as stack:
        # What a killed host leaves behind goes with it; and the names of sockets have to be short.
        temporary = stack.enter_context(TemporaryDirectory())
        environment = told(GLOO_SOCKET_IFNAME="eth0", SAMPLE_PIPE=folder / "pipe", TMPDIR=temporary)
        started = []
        for command in launcher(hosts, folder, words):
            log = stack.enter_context((folder / f"{len(started)}.log").open("w"))
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, text=True, start_new_session=True
            )
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        yield started


def _ends(started: list[subprocess.Popen[str]]) -> list[bool]:
    """Whether each launcher ends as after success, in bounded time."""
    return [process.wait(GUARD) == 0 for process in started]


def _said(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))


def _verdicts(run: Run) -> list[tuple[str, Verdict]]:
    return [(record.requirement, record.verdict) for record in run.records]


def _all_end(host: Host) -> bool:
    """Whether all its processes end, in bounded time."""
    return all(is_gone(pid) for pid in host.processes())


def _run_until(lose: Callable[[Host], None], launcher: Launcher, hosts: Pair, folder: Path) -> Run:
    """The record of a run in whose midst the second host is lost; it fails, and no process of it stays."""
    with named_pipe(folder / "pipe") as pipe, launched(launcher, hosts, folder) as started:
        assert heard(pipe)
        lose(hosts[1])
        assert not any(_ends(started)), _said(folder)
        assert all(map(_all_end, hosts))
    return read_run(folder / "run.jsonl")


@pytest.mark.parametrize("launcher", [_torchrun, _mpiexec])
def test_a_run_on_two_hosts_passes_and_can_be_submitted(launcher: Launcher, hosts: Pair, tmp_path: Path) -> None:
    """Ranks meet over the network, the record counts two nodes, and verify accepts it as that of any other run."""
    with launched(launcher, hosts, tmp_path, "-k", "test_hosts_meet") as started:
        assert all(_ends(started)), _said(tmp_path)
    run = read_run(tmp_path / "run.jsonl")
    assert _verdicts(run) == [("hosts/meet", Verdict.PASS)]
    assert (run.header.environment["nodes"], run.header.environment["ranks per node"]) == ("2", "1")
    assert bundle([str(tmp_path / "run.jsonl"), "-o", str(tmp_path / "s.zip")]) == 0


def test_a_cut_link_is_told_of_the_rank_and_node_that_cannot_be_reached(hosts: Pair, tmp_path: Path) -> None:
    """The row in hand is broken, the next one not run; the run ends on both sides of the cut."""
    _check_loss(_run_until(Host.cut, _torchrun, hosts, tmp_path), "its connection is lost")


def test_a_killed_host_is_told_of_its_rank_and_node(hosts: Pair, tmp_path: Path) -> None:
    """The row in hand is broken, and the run ends, with its footer, on the host that is left."""
    _check_loss(_run_until(Host.kill, _torchrun, hosts, tmp_path), "its connection has ended")


def test_a_run_that_mpiexec_ends_since_a_host_was_killed_is_incomplete(hosts: Pair, tmp_path: Path) -> None:
    """It kills the other ranks at once: the row in hand is missing, or broken if it came first; no process is left."""
    run = _run_until(Host.kill, _mpiexec, hosts, tmp_path)
    assert _verdicts(run)[0] == ("hosts/meet", Verdict.PASS)
    assert all(_LOST in record.message for record in run.records[1:])
    assert standing(run).state is State.INCOMPLETE


def _check_loss(run: Run, why: str) -> None:
    assert _verdicts(run) == [
        ("hosts/meet", Verdict.PASS), ("hosts/loses", Verdict.BROKEN), ("hosts/misses", Verdict.NOT_RUN),
    ]  # fmt: skip
    for record in run.records[1:]:
        assert f"{_LOST}{why}" in record.message
    assert run.footer is not None
    assert run.footer.exit_status == pytest.ExitCode.TESTS_FAILED
