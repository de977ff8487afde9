"""The wheel, installed into an environment of its own, judges and shows from any folder what a checkout does."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

import pytest

from harness.records.provenance import sources_digest
from harness.records.reader import Run, read_run
from harness.records.record import Record, Verdict
from tests import ROOT
from tests.packaging.environments import PACKAGES, Completed, Environment, distribution_of

NODE = "suites/training/test_training_parity.py::test_training_on_integers_equals_the_unsharded_model_bit_for_bit"
#: Gradients are sums over ranks, where averages are due.
SUBJECT = """
import torch.distributed.fsdp as fsdp

from fsdp_conformance import CORE, Backend, Implementation


def fully_shard(module, **options):
    made = fsdp.fully_shard(module, **options)
    if isinstance(made, fsdp.FSDPModule):
        made.set_gradient_divide_factor(1.0)
    return made


implementation = Implementation(name="sums", fully_shard=fully_shard, module_class=fsdp.FSDPModule, claims=CORE)
backend = Backend(name="here", ranks=2, thread_ranks=2)
"""
NAMED = ["--implementation", "my_sharding:implementation", "--backend", "my_sharding:backend"]
RECORD = "reports/my_sharding-implementation.jsonl"


@pytest.fixture(scope="module")
def folder(environment: Environment) -> Path:
    """A vendor's folder: a module with a subject, and a package of the vendor's own with a name that we have, too."""
    there = environment.home / "vendor"
    (there / "harness").mkdir(parents=True)
    (there / "harness/__init__.py").write_text('raise RuntimeError("this is the vendor\'s")\n')
    (there / "my_sharding.py").write_text(SUBJECT)
    return there


@pytest.fixture(scope="module")
def judged(environment: Environment, folder: Path) -> tuple[Completed, Run]:
    """Two requirements, judged in that folder by ``fsdp-conformance run``."""
    few = ["-k", "unsharded_model_bit_for_bit and not hybrid", "--world", "threads"]
    ended = environment.run(folder, "fsdp-conformance", "run", *NAMED, *few, "-o", str(folder / "reports"))
    assert (folder / RECORD).exists(), ended.stdout + ended.stderr
    return ended, read_run(folder / RECORD)


@pytest.fixture(scope="module")
def failed(judged: tuple[Completed, Run]) -> Record:
    """The result of one, which the subject fails."""
    [record] = [record for record in judged[1].records if record.requirement == "parity/exact"]
    return record


def test_the_wheel_has_all_files_of_the_packages(wheel: Path) -> None:
    """Templates, waivers, sources in C++ and marks for type checkers come with the modules; tests do not."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    found = (path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file())
    ours = {path.relative_to(ROOT).as_posix() for path in found if path.suffix not in (".pyc", ".md")}
    assert packed == ours
    assert {f"{name}/py.typed" for name in PACKAGES} | {"suites/waivers.toml"} <= packed


def test_what_is_needed_has_no_linter_and_no_browser(environment: Environment) -> None:
    """All that follows runs where only what the wheel declares is installed."""
    needless = {"ruff", "mypy", "playwright", "expecttest", "jsonschema", "pytest-xdist", "tox", "coverage"}
    assert {"torch", "pytest", "hypothesis"} <= set(environment.distributions)
    assert not needless & set(environment.distributions)
    points = {(point.group, point.name, point.value) for point in distribution_of(environment.site).entry_points}
    assert ("pytest11", "fsdp_conformance", "fsdp_conformance.entry_point") in points
    assert ("console_scripts", "fsdp-conformance", "fsdp_conformance.__main__:main") in points


def test_a_run_in_any_folder_is_recorded_as_in_a_checkout(judged: tuple[Completed, Run], failed: Record) -> None:
    """The vendor's module is found, node ids and the digest of the sources are a checkout's, and there is a page."""
    ended, run = judged
    assert (ended.returncode, failed.verdict, failed.nodeid) == (1, Verdict.FAIL, f"{NODE}[threads]"), ended.stdout
    assert "vendor's" not in ended.stdout + ended.stderr
    assert set(run.header.plan) == {record.nodeid for record in run.records}
    assert run.header.sources == sources_digest()
    assert run.footer is not None
    assert run.footer.problems == []


def test_records_contain_no_home_directory(
    environment: Environment, folder: Path, judged: tuple[Completed, Run]
) -> None:
    """What the user typed has the path of a folder that is in the home directory; the record has a tilde."""
    assert str(environment.home) not in (folder / RECORD).read_text(encoding="utf-8")
    assert f"--record ~/vendor/{RECORD}" in judged[1].header.command


def test_the_lines_that_reproduce_can_be_pasted(environment: Environment, folder: Path, failed: Record) -> None:
    """The record's line, typed where the run was made, runs the case again, and it fails again."""
    ended = environment.run(folder, *shlex.split(failed.reproduce), "-q", "--record", "again.jsonl")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    [again] = read_run(folder / "again.jsonl").records
    assert (again.nodeid, again.message, again.case) == (failed.nodeid, failed.message, failed.case)
    page = (folder / "reports/page.html").read_text(encoding="utf-8")
    assert f"fsdp-conformance reproduce {shlex.join(NAMED)} {RECORD} " in page


def test_reproduce_runs_the_case_and_prints_a_script(environment: Environment, folder: Path, failed: Record) -> None:
    """Both find the vendor's module, in that folder."""
    words = ["fsdp-conformance", "reproduce", *NAMED, RECORD, failed.nodeid]
    ended = environment.run(folder, *words, "--", "-q", "--record", "third.jsonl")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert read_run(folder / "third.jsonl").records[0].message == failed.message
    ended = environment.run(folder, *words, "--script")
    assert ended.returncode == 0, ended.stderr
    assert "from my_sharding import implementation" in ended.stdout


def test_the_doctor_examines_the_vendors_module(environment: Environment, folder: Path) -> None:
    """It finds that gradients are sums."""
    ended = environment.run(folder, "fsdp-conformance", "doctor", *NAMED, "--patience", "300")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "expected averages, got sums" in ended.stdout


#: Commands that read files, and their exit status: the run is of a part, and has a failure.
COMMANDS = {
    "report RECORD -o other.html": 0,
    "compare RECORD RECORD": 0,
    "watch RECORD": 1,
    "ctrf RECORD": 0,
    "waivers check SITE/suites/waivers.toml --records RECORD": 0,
    "waivers suggest RECORD": 0,
    "bundle RECORD": 1,
    "verify my_sharding.py": 2,
}


@pytest.mark.parametrize(("words", "status"), COMMANDS.items(), ids=str)
def test_commands_read_files_in_any_folder(
    environment: Environment, folder: Path, failed: Record, words: str, status: int
) -> None:
    """Each ends as it does in a checkout."""
    typed = words.replace("RECORD", RECORD).replace("SITE", str(environment.site)).split()
    ended = environment.run(folder, "fsdp-conformance", *typed)
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_pytest_without_requirements_sees_nothing_of_it(environment: Environment, folder: Path) -> None:
    """A user's tests may have options and packages with our names; torch is not imported for them."""
    repository = folder / "repository"
    (repository / "harness").mkdir(parents=True)
    (repository / "harness/__init__.py").write_text("mine = True\n")
    (repository / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--backend')\n")
    test = "import sys\n\ndef test_mine(request):\n    import harness\n    assert harness.mine\n"
    test += "    assert request.config.getoption('--backend') == 'mine'\n    assert 'torch' not in sys.modules\n"
    (repository / "test_mine.py").write_text(test)
    ended = environment.run(repository, "python", "-m", "pytest", "-q", "--backend", "mine")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["python", "-m", "pytest", "--pyargs", "suites.setup.test_entry"], 4),
        (["fsdp-conformance", "report", RECORD], 2),
        (["python", "my_sharding.py"], 1),
    ],
    ids=["pytest", "command", "module"],
)
def test_a_package_in_the_place_of_ours_is_refused(
    environment: Environment, folder: Path, words: list[str], status: int
) -> None:
    """Where Python takes the vendor's package for ours, a sentence says which it is, and what to do."""
    variables = {"PYTHONPATH": str(folder)} if words[0] == "fsdp-conformance" else {}
    ended = environment.run(folder, *words, **variables)
    assert ended.returncode == status, ended.stdout + ended.stderr
    said = [line for line in ended.stderr.splitlines() if "expected the package 'harness'" in line]
    assert len(said) == 1, ended.stderr
    assert f"found {folder / 'harness'}: run from another folder" in said[0]
    assert ("Traceback" in ended.stderr) == (status == 1)
