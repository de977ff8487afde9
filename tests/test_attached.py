"""Ranks that a launcher has started: verdicts are those of processes, and whatever happens is told of the right one."""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.attached import pytest_arguments
from harness.load import Subject
from harness.report.read import missing, read_run
from harness.verdict import Verdict
from harness.waivers import waivers_in
from harness.worlds import attached as controller
from harness.worlds import attached_fleet, wire
from harness.worlds.attached_fleet import Fleet
from harness.worlds.attached_launch import launched, open_store
from harness.worlds.attached_line import AGENT, CONTROLLER, SealedLine
from harness.worlds.base import Fate, NotRun, first_cause
from harness.worlds.make import open_world
from tests import programs
from tests.attached_samples import ENDS
from tests.attaching import attached, knock, torchruns
from tests.harness_faults import FAULTS, Fault
from tests.injecting import inject, look, short_times
from tests.judging import judged
from tests.leftovers import descendants, is_gone
from tests.worlds import TORCH_ON_GLOO, check_that_it_works, fates

#: A few of all faults, for each thing that an agent does for its host.
TRIED = (
    "is_killed", "sleeps", "calls_another_collective", "raises_on_one", "prints_and_raises", "returns_an_object",
    "answers_twice", "announces_much", "removes_its_files", "leaves_a_daemon_and_dies",
    "never_leaves",
)  # fmt: skip
KEY = b"the key of a run"
WAIVER = """
[[waiver]]
nodeid = "a.py::test_b[processes]"
subject = "gloo"
issue = "https://example.org/1"
reason = "known"
expires = 2999-01-01
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Fleet, int]]:
    """Two ranks, each on a node of its own as srun would say; and the agent of rank 1."""
    with attached(2) as (found, [agent]), short_times():
        look("attached")
        yield found, agent.pid


@pytest.fixture
def fleet(cluster: tuple[Fleet, int]) -> Fleet:
    """The ranks."""
    return cluster[0]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if str(fault) in TRIED], ids=str)
def test_a_fault_is_told_and_the_next_run_is_unharmed(fault: Fault) -> None:
    """Each fault gives the right fates and first cause, in time; the same world runs again, and so does the next."""
    assert inject("attached", fault) == []


@pytest.mark.usefixtures("cluster")
def test_a_hung_rank_shows_its_stack_and_its_log() -> None:
    """A rank whose time is up at an agent's is shown where it was; and what it has printed is there."""
    with open_world("attached", 2, TORCH_ON_GLOO) as world:
        _, culprit = world.run(programs.sleeps, deadline=0.5)
        assert "in sleeps (programs.py:" in culprit.error
        assert "in sleeps" in culprit.traceback
        assert world.run(programs.prints_and_raises)[1].log.endswith("xx\nlast words\n")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("requirement", "implementation", "verdict"),
    [
        ("parity/exact", "torch", Verdict.PASS),
        ("parity/exact", "tests.faulty.reductions:sums_for_averages", Verdict.FAIL),
        ("distributed-checkpoint/in-background", "torch", Verdict.PASS),
    ],
    ids=["right", "faulty", "through files"],
)
def test_verdicts_are_those_of_processes(requirement: str, implementation: str, verdict: Verdict) -> None:
    """Right subjects pass, and faulty ones are as red as in processes, for the same cause."""
    subject = Subject(implementation, "gloo")
    ends = [judged(requirement, subject, world, ranks=2) for world in ("processes", "attached")]
    assert ends[0].verdict is verdict
    assert [(end.verdict, end.cause, end.message) for end in ends[1:]] == [(verdict, ends[0].cause, ends[0].message)]


def test_a_world_of_fewer_ranks_takes_the_first_of_them(fleet: Fleet) -> None:
    """The first rank is not at an agent's; and there are no more ranks than the launcher has started."""
    with open_world("attached", 1, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
    with pytest.raises(ValueError, match="the launcher has started 2 ranks, got 3"):
        open_world("attached", 3, TORCH_ON_GLOO)
    assert fleet.facts() == {"nodes": "2", "ranks per node": "1"}


def test_an_agent_that_stops_for_a_while_has_a_rank_that_hangs(
    cluster: tuple[Fleet, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who says nothing until the deadline has hung, and shows no stack; when its agent goes on, so do others."""
    monkeypatch.setattr(controller, "_SOON", 0.3)
    with open_world("attached", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        os.kill(cluster[1], signal.SIGSTOP)
        ends = world.run(programs.add_up, deadline=0.5)
        os.kill(cluster[1], signal.SIGCONT)
        assert fates(ends) == [Fate.INTERRUPTED, Fate.HUNG]
        assert "it showed no stack" in ends[1].error
        check_that_it_works(world)


def test_folders_are_those_that_all_machines_see(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks on several machines save where an agent sees what is made here; else such a row is not run."""
    monkeypatch.setattr(fleet, "on_one_machine", False)
    assert attached_fleet.shared_folder() == tempfile.gettempdir()
    monkeypatch.setenv("FSDP_CONFORMANCE_SHARED", "/elsewhere")
    monkeypatch.setattr(fleet, "_seen", {"/elsewhere": False})
    with pytest.raises(NotRun, match="not all machines see what is made in /elsewhere"):
        attached_fleet.shared_folder()


def test_a_waiver_for_processes_is_for_attached_ranks_too() -> None:
    """The same defect shows in both, and one waiver says so; threads are another matter."""
    [waiver] = waivers_in(WAIVER.encode(), "waivers")
    rows = {world: waiver.names("a/b", f"a.py::test_b[{world}]") for world in ("processes", "attached", "threads")}
    assert rows == {"processes": True, "attached": True, "threads": False}


def test_an_agent_that_is_killed_is_named_and_then_missed() -> None:
    """Its rank has failed, because of it; worlds that need it cannot start, others can; what it had started is gone."""
    with attached(2) as (_, [agent]), open_world("attached", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        below = descendants(agent.pid)
        threading.Timer(0.3, agent.kill).start()
        ends = world.run(programs.sleeps, deadline=30)
        assert fates(ends) == [Fate.INTERRUPTED, Fate.CRASHED]
        first = first_cause(ends)
        assert first is not None
        assert first.error == "the agent of rank 1 on node 1 is gone: its connection has ended"
        assert below
        assert all(is_gone(pid) for pid in below)
        with pytest.raises(NotRun, match=r"the attached world of 2 ranks .* the agent of rank 1 on node 1 is gone"):
            world.run(programs.add_up)
        with open_world("attached", 1, TORCH_ON_GLOO) as small:
            check_that_it_works(small)


# Strangers.


def test_strangers_are_not_admitted_and_hold_nobody_up() -> None:
    """Who connects without the key, and says garbage, too much, or nothing, hears nothing; an agent is let in."""
    with attached_fleet.listening("127.0.0.1", KEY) as (port, arrivals):
        silent = socket.create_connection(("127.0.0.1", port))
        for says in (bytes(range(256)) * 40, b"\0" * 4096, b"\xff" * 10_000):
            assert len(knock(port, says)) == 32, "a number that was never used before, and no more"
        for key, rank in ((b"another key", 1), (KEY, 2)):
            line = SealedLine(socket.create_connection(("127.0.0.1", port)), key, AGENT)
            line.say(wire.encode([rank, "node", 0]))
        member = arrivals.get(timeout=10)
        assert (member.rank, member.node, member.local) == (2, "node", 0)
        assert arrivals.empty()
        silent.close()
        member.lose("it is over")


def lines(*sides: bytes) -> list[SealedLine]:
    """Both ends of a line, which greet each other."""
    made: dict[int, SealedLine] = {}

    def greet(end: int, connection: socket.socket) -> None:
        made[end] = SealedLine(connection, KEY, sides[end])

    threads = [threading.Thread(target=greet, args=pair) for pair in enumerate(socket.socketpair())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[0], made[1]]


@pytest.mark.parametrize(
    "change",
    [lambda sent: sent[:-1] + b"?", lambda sent: sent + sent, lambda sent: sent[:4] + b"\0" * 32 + sent[36:]],
    ids=["changed", "said twice", "sealed otherwise"],
)
def test_what_is_changed_or_repeated_on_the_way_is_refused(change: Callable[[bytes], bytes]) -> None:
    """A message whose seal is not that of its content and place ends the line."""
    ours, theirs = lines(CONTROLLER, AGENT)
    ours.say(b"an order")
    sent = os.read(theirs.fileno(), 4096)
    os.write(ours.fileno(), change(sent))
    theirs.listen()
    with pytest.raises(ValueError, match="without the run's seal"):
        while theirs.next() is not None:
            pass
    ours.close()
    theirs.close()


def test_a_side_that_hears_its_own_words_refuses_them() -> None:
    """What the controller says is not taken for an agent's, whoever sends it back."""
    ours, theirs = lines(CONTROLLER, AGENT)
    ours.say(b"an order")
    os.write(theirs.fileno(), os.read(theirs.fileno(), 4096))
    ours.listen()
    with pytest.raises(ValueError, match="without the run's seal"):
        ours.next()
    ours.close()
    theirs.close()


# Launchers.

MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1", "SLURM_PROCID": "0"}, (3, 4, 1, "1")),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}, (3, 4, 1, "1")),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "4"}, (1, 2, None, "")),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            (3, 4, 1, ""),
        ),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 4, None, "")),
    ],
    ids=["torchrun", "srun", "srun step", "Open MPI", "PMI"],
)
def test_launchers_are_understood(variables: dict[str, str], found: tuple[object, ...]) -> None:
    """Rank, size, rank on its node, and node are what the launcher says; what is inside a Slurm job is not Slurm's."""
    launch = launched({**variables, **MEETING})
    assert (launch.rank, launch.size, launch.local, launch.node) == found
    assert (launch.address, launch.port, launch.keeps_store) == ("10.0.0.1", 29500, False)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "no launcher has started this process"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT are not set"),
        ({"RANK": "2", "WORLD_SIZE": "2", **MEETING}, "expected a rank from 0 to WORLD_SIZE - 1"),
        ({"RANK": "-1", "WORLD_SIZE": "2", **MEETING}, "RANK='-1': expected a number"),
    ],
)
def test_a_wrong_start_is_told_in_a_sentence(variables: dict[str, str], words: str) -> None:
    """What is missing or wrong in what a launcher says is named, with what to do."""
    with pytest.raises(ValueError, match=words):
        launched(variables)


def test_rank_0_keeps_the_store_where_the_launcher_does_not() -> None:
    """It listens on the interface of that address alone, and others find what it says there."""
    first = launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    store = open_store(first)
    port = store.underlying_store.port
    second = launched({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    open_store(second).set("said", "there")
    assert store.get("said") == b"there"
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert [line.split()[1] for line in listening.splitlines() if f":{port:04X} 0" in line and " 0A " in line] == [
        f"0100007F:{port:04X}"
    ]


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ("-- pytest suites -q", "suites -q --world=attached"),
        ("pytest suites --world both", "suites --world both"),
        ("pytest a.py::test_b[processes] --world attached", "a.py::test_b[attached] --world attached"),
        ("pytest a.py::test_b[threads-x]", "a.py::test_b[attached-x] --world=attached"),
    ],
)
def test_what_pytest_is_called_with(given: str, called: str) -> None:
    """The world is attached unless another is asked for, and so are tests that are named as of another world."""
    assert pytest_arguments(given.split()) == called.split()


# Two nodes, each with a torchrun of one rank; all of it on this machine.


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, set[int]]]:
    """A run that was told to end in its last row: its record, what it printed, and all processes that there were."""
    there = tmp_path_factory.mktemp("attached")
    os.mkfifo(there / "pipe")
    pipe = os.open(there / "pipe", os.O_RDWR)
    args = ["tests/attached_samples.py", "--backend", "gloo", "--record", str(there / "record.jsonl")]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SAMPLE_PIPE", str(there / "pipe"))
            with torchruns(2, *args) as nodes:
                assert select.select([pipe], [], [], 120)[0], "the rank never said that it hangs"
                below = {pid for node in nodes for pid in descendants(node.pid)}
                for node in nodes:
                    node.send_signal(signal.SIGTERM)
                text = "".join(node.communicate(timeout=60)[0] for node in nodes)
        yield there / "record.jsonl", text, below
    finally:
        os.close(pipe)


def test_rows_under_torchrun_end_as_they_must(ended: tuple[Path, str, set[int]]) -> None:
    """Right and wrong subjects, and ranks that die, have the rows of processes; the record says where they ran."""
    run = read_run(ended[0])
    rows = {record.requirement: record for record in run.records}
    assert list(rows) == list(ENDS), ended[1]
    for name, (verdict, cause, words) in ENDS.items():
        assert (rows[name].verdict, rows[name].cause) == (verdict, cause), rows[name].message
        assert rows[name].message.startswith(words)
        assert rows[name].world == "attached"
    assert run.header.worlds == ["attached"]
    assert (run.header.environment["nodes"], run.header.environment["ranks per node"]) == ("2", "1")
    assert rows["samples/dies"].reproduce.startswith("torchrun --nproc-per-node=2 -m harness.attached -- pytest ")


def test_a_run_that_is_told_to_end_ends_in_order(ended: tuple[Path, str, set[int]]) -> None:
    """At SIGTERM the row in hand is not written, the footer is, and no process is left on any node."""
    run = read_run(ended[0])
    assert [node.partition("::")[2] for node in missing(run)] == ["test_never_ends[attached]"]
    assert run.footer is not None
    assert run.footer.exit_status == pytest.ExitCode.INTERRUPTED
    assert len(ended[2]) >= 8, "on each node an agent or controller, its fork server, the rank, and a resource tracker"
    assert all(is_gone(pid) for pid in ended[2])
