"""A run whose worlds cannot start: it is not green, it stops soon, and it says the reason once and what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.pytest_plugin.recording import Recorder
from harness.records.reader import Run, missing, read_run
from harness.records.record import Record, Verdict
from harness.worlds.base import NotRun, WorldCannotStart
from harness.worlds.make import open_world
from harness.worlds.workers import supervised_world
from tests.plugin.test_plugin import SUBJECT, Completed, pytest_run
from tests.worlds.helpers import TORCH_ON_GLOO
from tests.worlds.programs import basic

#: Samples that pass in both worlds: four requirements, eight results.
PASSING = "test_ranks_add_up or test_small_numbers or test_runs_after"
WITHOUT_PLUGIN = "cannot start: ModuleNotFoundError: No module named 'no_such_plugin'"


def run_on(backend: str, there: Path, *args: str, select: str = PASSING) -> tuple[Completed, Run]:
    """The samples on another backend."""
    subject = [*SUBJECT[:2], "--backend", f"tests.worlds.programs.basic:{backend}"]
    files = ["--record", str(there / "record.jsonl")]
    ended = pytest_run("tests/plugin/samples.py", *subject, *files, "-k", select, *args)
    return ended, read_run(there / "record.jsonl")


def told(run: Run) -> tuple[int, list[str]]:
    """Exit status and problems in the footer."""
    assert run.footer is not None
    return run.footer.exit_status, run.footer.problems


def verdicts(run: Run, world: str) -> set[Verdict]:
    """The verdicts of the results in one world."""
    return {record.verdict for record in run.records if record.world == world}


def test_a_run_stops_at_the_third_world_that_cannot_start_for_the_same_reason(tmp_path: Path) -> None:
    """A missing plugin ends the run after three results, with one problem that names it and the doctor's command."""
    ended, run = run_on("without_plugin", tmp_path)
    status, (problem, _) = told(run)
    backend = "tests.worlds.programs.basic:without_plugin"
    doctor = f"fsdp-conformance doctor --backend {backend} --implementation tests.plugin.samples:"
    assert (ended.returncode, status) == (2, 2)
    assert problem == f"worlds {WITHOUT_PLUGIN}; run `{doctor}implementation` to see why"
    assert f"problem: {problem}\n" in ended.stdout
    assert "3 worlds could not start for the same reason" in ended.stdout
    assert [record.message.splitlines()[0] for record in run.records] == [WITHOUT_PLUGIN] * 3
    assert {(record.verdict, record.cause) for record in run.records} == {(Verdict.NOT_RUN, "cannot start")}
    assert len(missing(run)) == 5


def test_workers_stop_as_well(tmp_path: Path) -> None:
    """With workers of pytest-xdist too: the same status and problem, and no worker goes beyond three."""
    ended, run = run_on("without_plugin", tmp_path, "--numprocesses", "2")
    status, (problem, _) = told(run)
    assert (ended.returncode, status) == (2, 2)
    assert problem.startswith(f"worlds {WITHOUT_PLUGIN}; run `fsdp-conformance doctor ")
    assert 3 <= len(run.records) <= 6


def test_a_backend_that_starts_threads_alone_is_not_green(tmp_path: Path) -> None:
    """An unknown process group fails the run even if all results in threads pass and no third world is tried.

    The terminal has the reason in one line, also where it is asked for skips; the record has the traceback.
    """
    ended, run = run_on("without_group", tmp_path, "-rs", select="test_ranks_add_up")
    assert verdicts(run, "threads") == {Verdict.PASS}
    assert verdicts(run, "processes") == {Verdict.NOT_RUN}
    status, [problem] = told(run)
    assert (ended.returncode, status) == (1, 1)
    assert problem.startswith("worlds cannot start: AssertionError: Unknown backend type nonsense; run `fsdp-conf")
    assert "not run: cannot start: AssertionError: Unknown backend type nonsense\n" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ["Traceback" in record.message for record in run.records if record.world == "processes"] == [True]


def test_a_declared_limit_stays_green(tmp_path: Path) -> None:
    """Results that need more ranks than there are, or what the backend lacks, are not run and no problem."""
    args = ["-k", "test_ranks_add_up or test_needs", "--record", str(tmp_path / "record.jsonl")]
    assert pytest_run("tests/plugin/samples.py", *SUBJECT, *args).returncode == 0
    run = read_run(tmp_path / "record.jsonl")
    assert Verdict.NOT_RUN in verdicts(run, "processes")
    assert told(run) == (0, [])


class _Session:
    """The session of a run, as far as it can be stopped."""

    shouldstop = ""


def heard(*messages: str, cause: str = WorldCannotStart.cause) -> tuple[str, list[str]]:
    """Why a run stops, if it does, and its problems, after results with these messages."""
    session = _Session()
    options = {"--implementation": "torch", "--backend": "gloo", "--model": ""}
    plugins = SimpleNamespace(get_plugin={"session": session}.get)
    recorder = Recorder(SimpleNamespace(getoption=options.get, pluginmanager=plugins))  # type: ignore[arg-type]
    for message in messages:
        recorder.check_start(Record("a/b", "t::a", "a", "It.", "must", "threads", Verdict.NOT_RUN, message, cause))
    return session.shouldstop, recorder.problems


def test_ranks_and_ports_make_no_other_reason() -> None:
    """Reasons that differ by numbers are one; by words, they are two problems, and do not stop the run together."""
    ports = [f"cannot start: RuntimeError: rank {n} found no peer at port {4000 + n}\nrank {n}" for n in range(3)]
    assert heard(*ports[:2])[0] == ""
    stop, [problem] = heard(*ports)
    assert stop == "3 worlds could not start for the same reason"
    assert "rank 0 found no peer at port 4000; run `fsdp-conformance doctor --backend gloo" in problem
    stop, problems = heard(*ports[:2], "cannot start: OSError: no memory")
    assert (stop, len(problems)) == ("", 2)


def test_other_limits_are_no_start_failures() -> None:
    """What could not be tried because a folder is missing stops nothing."""
    assert heard(*["not all machines see what is made in /tmp"] * 5, cause=NotRun.cause) == ("", [])


def test_a_world_that_could_not_start_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis runs a failing test with many cases: each one is told the reason, and processes are started once."""
    started = []

    def refuse(*_: object) -> None:
        started.append(1)
        raise OSError("no more processes")

    monkeypatch.setattr(supervised_world, "Team", refuse)
    with open_world("processes", 1, TORCH_ON_GLOO) as world:
        for _ in range(3):
            with pytest.raises(WorldCannotStart, match=r"^cannot start: no process could be made: OSError: no more"):
                world.run(basic.add_up)
    assert started == [1]
