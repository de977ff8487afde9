"""The requirements of a user's own model: what each detects, and that they live in a repository of the user's own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from harness.records.reader import read_run
from harness.vendor.load import Subject
from suites.catalogue import Entry, entries_of
from tests import ROOT
from tests.mutation.judging import judged
from tests.patience import GUARD
from tests.plugin.test_plugin import Completed, pytest_run

FILE = "suites/model/own_model.py"
#: A mutant that each requirement kills.
KILLED = {
    "model/training": "tests.mutants.numbers.reductions:sums_for_averages",
    "model/state": "tests.mutants.state.optimizer_state:gives_zeros_for_the_first",
    "model/resume": "tests.mutants.state.distributed_checkpoint:resumes_with_old_weights",
    "model/meta": "tests.mutants.modules.meta_chapter:loses_odd_rows_from_meta",
    "model/memory": "tests.mutants.passes.memory_chapter:holds_views_of_everything",
    "model/communication": "tests.mutants.passes.communication:gathers_twice",
}


def requirements() -> dict[str, Entry]:
    """Those of the chapter, by id."""
    return {entry.requirement.id: entry for entry in entries_of("suites.model.own_model")}


def test_each_requirement_has_a_mutant_and_is_one_sentence() -> None:
    """All are of the chapter that is left out without a model, and none is without a mutant."""
    assert requirements().keys() == KILLED.keys()
    for entry in requirements().values():
        assert re.fullmatch(r"[^.]+\.", entry.statement), entry.statement
        assert len(entry.test.__name__.split("_")) >= 4


@pytest.mark.parametrize("id", KILLED)
def test_each_requirement_kills_its_mutant(id: str) -> None:
    """It fails for the mutant, on a right model, as the subject's fault."""
    subject = Subject(KILLED[id], "gloo", model="tests.model.factories:decoder")
    end = judged(requirements()[id], subject, "threads")
    assert (end.is_kill, end.cause) == (True, "disagreement"), end


def test_all_that_a_factory_may_say_is_judged(tmp_path: Path) -> None:
    """A float64 net of wrapped names, batches by number and a loss of its own passes; the record says which it was."""
    record = tmp_path / "run.jsonl"
    model = ["--model", "tests.model.factories:everything", "--world", "threads"]
    ended = pytest_run(FILE, *model, "--implementation", "reference", "--record", str(record))
    assert "pass: 6\n" in ended.stdout, ended.stdout
    run = read_run(record)
    assert run.header is not None
    assert run.header.environment["model"] == "tests.model.factories:everything"
    assert {each.requirement for each in run.records} == set(KILLED)


def test_a_case_says_which_model_it_is_of() -> None:
    """A case alone runs again, without ``--model``."""
    case = '{"case": "ModelCase", "model": "tests.model.factories:decoder", "world_size": 2}'
    ended = pytest_run(f"{FILE}::test_own_model_is_held_in_parts[threads]", "--case", case)
    assert "pass: 1\n" in ended.stdout, ended.stdout


def test_without_a_model_nothing_of_it_is_judged() -> None:
    """Its tests are deselected, and no run of the suites collects them."""
    ended = pytest_run(FILE)
    assert ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "12 deselected" in ended.stdout
    assert "own_model" not in pytest_run("suites/model", "--collect-only").stdout


# In a user's own repository.

MODEL = "import torch\n\ndef net():\n    torch.manual_seed(1)\n    layers = [torch.nn.Linear(4, 4) for _ in range(4)]\n"
MODEL += "    return torch.nn.Sequential(*layers), torch.rand(2, 4)\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A factory, a test of the user's own, and one line that has the model judged."""
    (tmp_path / "my_net.py").write_text(MODEL)
    (tmp_path / "test_my_net.py").write_text("from suites.model.own_model import *\n")
    (tmp_path / "test_others.py").write_text("def test_mine(pytestconfig):\n    assert pytestconfig.rootpath\n")
    return tmp_path


def run_there(repository: Path, *words: str) -> Completed:
    """pytest in that folder, with the entry point of this project loaded as where it is installed."""
    paths = os.pathsep.join([str(ROOT), str(repository)])
    is_installed = any(point.value == "fsdp_conformance.entry_point" for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "fsdp_conformance.entry_point"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *words]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, timeout=GUARD, check=False
    )


def test_it_is_judged_in_a_users_own_repository(repository: Path) -> None:
    """One line in a test file, and an option, or a line of the ini file, are enough."""
    few = ["--world", "threads", "-k", "parts or mine"]
    ended = run_there(repository, "--model", "my_net:net", *few)
    assert "2 passed, 11 deselected" in ended.stdout, ended.stdout + ended.stderr
    (repository / "pytest.ini").write_text("[pytest]\nmodel = my_net:net\nworld = threads\n")
    ended = run_there(repository, "-k", "parts or mine")
    assert "2 passed, 11 deselected" in ended.stdout, ended.stdout + ended.stderr


def test_a_conftest_may_load_the_plugin_too(repository: Path) -> None:
    """What is loaded by the entry point is not loaded again."""
    (repository / "conftest.py").write_text('pytest_plugins = ["harness.pytest_plugin"]\n')
    for words in (["--model", "my_net:net"], []):
        ended = run_there(repository, "--collect-only", *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert ("12 deselected" in ended.stdout) == (not words)


def test_the_entry_point_does_nothing_without_a_model(repository: Path) -> None:
    """No option is added, torch is not imported for it, and requirements are deselected."""
    (repository / "test_others.py").write_text(
        "import sys\n\ndef test_mine(pytestconfig):\n"
        "    assert pytestconfig.getoption('--world', 'none') == 'none'\n"
        "    assert 'torch' not in sys.modules\n"
    )
    ended = run_there(repository, "--strict-markers", "test_others.py")
    assert "1 passed" in ended.stdout, ended.stdout + ended.stderr
    ended = run_there(repository, "--strict-markers", "test_my_net.py")
    assert "deselected" in ended.stdout, ended.stdout + ended.stderr
    assert ended.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
