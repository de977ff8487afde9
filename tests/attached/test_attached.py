"""Ranks that a launcher has started: verdicts are those of processes, and whatever happens is told of the right one."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.records.reader import missing, read_run
from harness.records.record import Verdict
from harness.vendor.load import Subject
from harness.waivers.waiver import waivers_in
from harness.worlds.attached import fleet as attached_fleet
from harness.worlds.attached.fleet import Fleet
from harness.worlds.attached.member import Member
from harness.worlds.base import Disturbed, Fate, NotRun, WorldCannotStart
from harness.worlds.make import open_world
from tests.attached.attached_samples import ENDS
from tests.attached.attaching import attached, torchruns
from tests.mutation.judging import judged
from tests.patience import GUARD
from tests.pipes import heard, named_pipe
from tests.waivers.stanzas import stanza
from tests.worlds.helpers import TORCH_ON_GLOO, check_that_it_works, fates
from tests.worlds.leftovers import descendants, is_gone
from tests.worlds.programs import basic
from tests.worlds.programs.dying import waits_the_first_time
from tests.worlds.programs.hanging import deadline_when
from tests.worlds.programs.harness_faults import DEADLINE as HANGING
from tests.worlds.programs.harness_faults import FAULTS, Fault
from tests.worlds.programs.injecting import inject, look
from tests.worlds.programs.striking import killing, stopping, striking

#: A few of all faults, for each thing that an agent does for its worker.
TRIED = (
    "is_killed", "sleeps", "calls_another_collective", "raises_on_one", "prints_and_raises", "returns_an_object",
    "writes_to_every_pipe", "removes_its_files", "leaves_a_daemon_and_dies",
    "leaves_a_stubborn_thread",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Fleet, int]]:
    """Two ranks, each on a node of its own as srun would say; and the agent of rank 1."""
    with attached(2) as (found, [agent]):
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
        _, culprit = world.run(basic.sleeps, deadline=HANGING)
        assert "in sleeps (basic.py:" in culprit.error
        assert "in sleeps" in culprit.traceback
        assert world.run(basic.prints_and_raises)[1].log.endswith("xx\nlast words\n")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("requirement", "implementation", "verdict"),
    [
        ("parity/exact", "torch", Verdict.PASS),
        ("parity/exact", "tests.mutants.numbers.reductions:sums_for_averages", Verdict.FAIL),
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


def test_an_agent_that_stops_for_a_while_costs_a_run_that_is_repeated(
    cluster: tuple[Fleet, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose agent says nothing has not hung: once the agent goes on, the run is repeated."""
    ask = Member.ask

    def is_asked(self: Member, *words: Any, limit: float | None = None) -> Any:
        if words[0] != "disturbance":
            return ask(self, *words, limit=limit)
        answer = ask(self, *words, limit=0.1)
        os.kill(cluster[1], signal.SIGCONT)
        return answer

    monkeypatch.setattr(Member, "ask", is_asked)
    with open_world("attached", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        os.kill(cluster[1], signal.SIGSTOP)
        is_stopped = [True]
        words = "^the agent of rank 1 on node 1 said nothing for 60 s: the 2 ranks"
        with deadline_when(lambda: bool(is_stopped and is_stopped.pop())), pytest.warns(RuntimeWarning, match=words):
            assert fates(world.run(basic.add_up, deadline=GUARD)) == [Fate.RETURNED, Fate.RETURNED]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("strike", "words"),
    [(killing, "^the fork server died .killed by SIGKILL., at the agent of rank 1 on node 1: the 2 ranks"),
     (stopping, "^a signal stopped rank 1, at the agent of rank 1 on node 1: the 2 ranks")],
    ids=["kills the fork server", "stops a rank"],
)  # fmt: skip
def test_a_run_that_is_disturbed_at_an_agent_s_is_repeated(strike: Any, words: str, tmp_path: Path) -> None:
    """What kills an agent's fork server, or stops its rank, costs a warning and a second run, as it does here."""
    with open_world("attached", 2, TORCH_ON_GLOO) as world, strike(tmp_path):
        with pytest.warns(RuntimeWarning, match=words):
            ends = world.run(waits_the_first_time, str(tmp_path), deadline=GUARD)
        assert fates(ends) == [Fate.RETURNED, Fate.RETURNED], ends


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
    text = stanza("a.py::test_b[processes]", "gloo").replace("requirement", "nodeid")
    [waiver] = waivers_in(text.encode(), "waivers")
    rows = {world: waiver.names("a/b", f"a.py::test_b[{world}]") for world in ("processes", "attached", "threads")}
    assert rows == {"processes": True, "attached": True, "threads": False}


def test_an_agent_that_is_killed_is_named_and_then_missed(tmp_path: Path) -> None:
    """Its rank is not blamed; worlds that need it cannot start, others can; what it had started is gone."""
    with attached(2) as (_, [agent]), open_world("attached", 2, TORCH_ON_GLOO) as world:
        check_that_it_works(world)
        below = descendants(agent.pid)
        gone = "the agent of rank 1 on node 1 is gone: its connection has ended"
        words = f"^{gone}; when the ranks were started again: .*cannot start.*{gone}"
        with (
            striking(tmp_path, lambda rank, server: agent.kill()),
            pytest.warns(RuntimeWarning, match=f"^{gone}"),
            pytest.raises(Disturbed, match=words),
        ):
            world.run(waits_the_first_time, str(tmp_path))
        assert below
        assert all(is_gone(pid) for pid in below)
        with pytest.raises(
            WorldCannotStart, match=r"the agent of rank 1 on node 1 is gone.*\nthe attached world of 2 "
        ):
            world.run(basic.add_up)
        with open_world("attached", 1, TORCH_ON_GLOO) as small:
            check_that_it_works(small)


# Two nodes, each with a torchrun of one rank; all of it on this machine.


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, set[int]]]:
    """A run that was told to end in its last row: its record, what it printed, and all processes that there were."""
    there = tmp_path_factory.mktemp("attached")
    args = ["tests/attached/attached_samples.py", "--backend", "gloo", "--record", str(there / "record.jsonl")]
    with pytest.MonkeyPatch.context() as patch, named_pipe(there / "pipe") as pipe:
        patch.setenv("SAMPLE_PIPE", str(there / "pipe"))
        with torchruns(2, *args) as nodes:
            assert heard(pipe)
            below = {pid for node in nodes for pid in descendants(node.pid)}
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            text = "".join(node.communicate(timeout=GUARD)[0] for node in nodes)
        yield there / "record.jsonl", text, below


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
    assert rows["samples/dies"].reproduce.startswith(
        "torchrun --nproc-per-node=2 -m fsdp_conformance attached -- pytest "
    )


def test_a_run_that_is_told_to_end_ends_in_order(ended: tuple[Path, str, set[int]]) -> None:
    """At SIGTERM the row in hand is not written, the footer is, and no process is left on any node."""
    run = read_run(ended[0])
    assert [node.partition("::")[2] for node in missing(run)] == ["test_never_ends[attached]"]
    assert run.footer is not None
    assert run.footer.exit_status == pytest.ExitCode.INTERRUPTED
    assert len(ended[2]) >= 8, "on each node an agent or controller, its fork server, the rank, and a resource tracker"
    assert all(is_gone(pid) for pid in ended[2])
