"""The doctor: what it says of right and of broken vendors, and that nothing of theirs can stop it."""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import cli
from harness.doctor import supervise
from harness.doctor.probes.groups import Groups
from harness.doctor.rows import GROUPED, Finding, State
from harness.doctor.supervise import Examination
from harness.doctor.table import all_rows
from harness.vendor.load import load_backend
from tests import ROOT as ROOT
from tests.patience import GUARD

pytestmark = pytest.mark.alone

#: More than any question of these tests takes where nothing hangs, on a busy machine.
PATIENCE, WHOLE = 60.0, GUARD


def asked(backend: str, *rows: str, patience: float = PATIENCE, implementation: str = "torch") -> dict[str, Finding]:
    """What the doctor finds of some rows, beside loading the backend."""
    others = {number: Finding(State.NOT_TRIED, "not asked") for number in all_rows() if number not in ("0a", *rows)}
    examined = Examination(implementation, backend, patience, WHOLE, findings=others).run()
    return {number: examined.findings[number] for number in ("0a", *rows)}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Callable[[str, str], Finding]]:
    """Asks ranks of a backend from this process: faults of these are in what they compute, and stop nothing."""
    opened: list[Groups] = []

    def ask(name: str, row: str) -> Finding:
        if not opened or opened[-1].name != name:
            opened.append(Groups("torch", name, load_backend(name), PATIENCE, lambda: None))
        return opened[-1].ask(row)

    yield ask
    for one in opened:
        one.close()


# What it finds.


def test_gloo_lacks_what_it_lacks_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On gloo everything is found but PREMUL_SUM and strided sums, and no MUST depends on these."""
    file = tmp_path / "doctor.json"
    assert cli.main(["doctor", "--backend", "gloo", "--json", str(file), "--patience", "60"]) == 0
    said = json.loads(file.read_text(encoding="utf-8"))
    states = {row["row"]: row["state"] for row in said["rows"]}
    assert {row: state for row, state in states.items() if state in ("missing", "wrong")} == {
        "16c": "missing",
        "15c": "wrong",
    }
    assert {row["said"] for row in said["rows"] if row["row"] in ("5", "6", "7", "25", "27")} == {"cpu needs none"}
    first, *_ = text = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"fsdp-conformance doctor: 27 found, 1 missing, 1 wrong, \d+ not tried; no MUST depends on .*", first
    )
    assert any(line.startswith(" 16c missing   all-reduce and reduce-scatter by PREMUL_SUM  [") for line in text)


def test_a_right_process_group_in_python_has_every_row_of_groups(ranks: Callable[[str, str], Finding]) -> None:
    """Of a backend without fault, made as a vendor makes one, nothing that concerns groups is missing."""
    rows = [row.number for row in all_rows().values() if row.subject in GROUPED and row.on_cpu]
    states = {number: ranks("tests.mutants.backends.fixed:right", number).state for number in rows}
    others = {number: state for number, state in states.items() if state is not State.FOUND}
    assert others == {"22c": State.NOT_TRIED, "28": State.NOT_TRIED}


@pytest.mark.parametrize(
    ("backend", "row", "state", "words"),
    [
        ("backends:sums_for_averages", "16b", State.WRONG, "number 0 of 1 is -6006, not -3003"),
        ("backends:refuses_averages", "16b", State.MISSING, "average is not supported by this scheduler"),
        ("backends:reverses_ranks", "15a", State.WRONG, "all-gather"),
        ("backends:clears_its_output_first", "17a", State.WRONG, "in place"),
        ("collective_chapter:gathers_in_bfloat16", "15a", State.WRONG, "float32"),
        ("collective_chapter:repeats_above_four_kibi", "15a", State.WRONG, "70003"),
        ("collective_chapter:adds_into_its_input", "17b", State.WRONG, "the input of"),
        ("collective_chapter:writes_beyond_its_output", "17b", State.WRONG, "beside the output"),
        ("collective_chapter:does_not_wait", "19a", State.WRONG, "read after wait()"),
        ("collective_chapter:keeps_no_inputs", "20", State.WRONG, "was let go"),
        ("collective_groups:holds_nobody", "15a", State.WRONG, "left a barrier"),
        ("collective_groups:places_by_rank_in_the_world", "22a", State.WRONG, "on axis 0 of 2 × 2"),
        ("collective_groups:has_no_coalesced_forms", "23", State.MISSING, ""),
        ("collective_groups:ignores_strides_in_sums", "15c", State.WRONG, "every second number"),
        ("collective_reductions:divides_twice_when_small", "16b", State.WRONG, "by AVG of 1 float32"),
        ("collective_reductions:multiplies_its_input", "16c", State.WRONG, "the input of"),
        ("collective_reductions:sums_from_three_ranks_on", "16d", State.WRONG, "by AVG"),
    ],
)
def test_a_faulty_backend_is_told_of_by_the_row_that_it_breaks(
    ranks: Callable[[str, str], Finding], backend: str, row: str, state: State, words: str
) -> None:
    """A fault in one collective is found by asking for that, and the words say what came and what should have."""
    found = ranks(f"tests.mutants.backends.{backend}", row)
    assert found.state is state
    assert words in found.said


# What breaks while it is asked.


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raises:backend", "ImportError: libnpu_runtime.so.3: cannot open shared object file"),
        ("values:needs_a_plugin", "ImportError: libnpu_runtime.so.3: cannot open shared object file"),
        ("dies:backend", "killed the process by SIGSEGV, in string_at"),
        ("leaves:backend", "ended the process with exit code 3: npu: no licence"),
        ("values:unsuitable", "ranks must be int, got 'eight'"),
        ("values:not_a_backend", "expected a harness.vendor.Backend, got str"),
    ],
)
def test_a_broken_import_is_a_row(module: str, words: str) -> None:
    """A plugin that raises, dies or leaves ends nothing but its own row, which has the last line of what it said."""
    found = asked(f"tests.doctor.broken.{module}", "10", "21b")
    assert found["0a"].state in (State.MISSING, State.WRONG)
    assert words in found["0a"].said
    assert {found[row].said for row in ("10", "21b")} == {"the backend does not load (row 0a)"}


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where ``tests.doctor.broken.hangs`` says that it hangs."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("BROKEN_PIPE", str(tmp_path / "pipe"))
    opened = os.open(tmp_path / "pipe", os.O_RDWR)  # for both ends, so that opening it waits for nobody
    yield opened
    os.close(opened)


def test_an_import_that_hangs_is_ended_and_shown(pipe: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the patience, a plugin that hangs is wrong, by the place where it hangs."""
    heard: list[bytes] = []

    def monotonic() -> float:
        """A clock that goes on by more than the patience when the plugin hangs."""
        if not heard and select.select([pipe], [], [], 0)[0]:
            heard.append(os.read(pipe, 1))
        return time.monotonic() + (PATIENCE + 1) * len(heard)

    monkeypatch.setattr(supervise, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    found = asked("tests.doctor.broken.hangs:backend", "10")
    assert heard
    assert found["0a"].state is State.WRONG
    assert re.search(r"did not return in time, in wait \(.*threading.py:\d+\)", found["0a"].said)


def test_a_device_without_resizable_storage_lacks_that_row() -> None:
    """A device in Python is seen by torch, computes, and fails where FSDP frees memory; groups come after."""
    found = asked("tests.doctor.broken.numbers_in_python:backend", "1", "4", "5", "10", "21a")
    assert found["1"] == found["1"].__class__(State.FOUND, "torch.npy", found["1"].seconds)
    assert found["4"].state is State.FOUND
    assert found["5"].state is State.MISSING
    assert (found["10"].state, "resize_" in found["10"].said) == (State.MISSING, True)
    assert found["21a"].state is State.WRONG


def test_a_device_that_is_not_here_is_missing_and_nothing_of_it_is_tried() -> None:
    """Where the machine has no such device, one row says so, and the others say why they were not tried."""
    found = asked("tests.doctor.broken.values:no_such_device", "1", "4", "10", "21b")
    assert [found[row].state for row in ("1", "4")] == [State.FOUND, State.MISSING]
    assert {found[row].said for row in ("10", "21b")} == {"no xpu device here (row 4)"}


@pytest.mark.parametrize(
    ("backend", "row", "state", "words"),
    [
        ("groups:dies_reducing", "16a", State.WRONG, "crashed"),
        ("groups:hangs_broadcasting", "15a", State.WRONG, "rank 0 hung"),
        ("groups:gives_handles", "19a", State.WRONG, "gives a Handle, no Work"),
        ("groups:knows_old_names", "15b", State.MISSING, "not overridden: all_gather_single, reduce_scatter_single"),
        ("groups:registered_by_a_string", "21a", State.WRONG, "devices x, y, z"),
        ("values:moves_nothing", "15a", State.WRONG, "all-gather of 1 float32 a rank: number 1 of 2"),
        ("groups:unregistered", "21a", State.MISSING, "torch knows no backend 'no_such_ccl'"),
    ],
)
def test_a_broken_process_group_is_told_of_by_the_row_that_it_breaks(
    ranks: Callable[[str, str], Finding], backend: str, row: str, state: State, words: str
) -> None:
    """Ranks that die, hang or answer something else cost their question alone; a later row is asked of new ranks."""
    found = ranks(f"tests.doctor.broken.{backend}", row)
    assert found.state is state
    assert words in found.said


def test_a_group_that_never_starts_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no group of ranks can be made, one row says so when its time is up, and no other waits for the same."""
    monkeypatch.setattr(Examination, "_limit", lambda self: GUARD)  # what else is asked before may take its time
    found = asked("tests.doctor.broken.groups:never_starts", "21b", "15a", "16a", patience=8.0)
    assert found["21b"].state is State.WRONG
    assert "cannot start" in found["21b"].said
    assert {found[row].said for row in ("15a", "16a")} == {"no process group starts (row 21b)"}


def test_an_autoloaded_backend_that_breaks_torch_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ``import torch`` fails because of an entry point, that is a row, and the others are asked without it."""
    package = tmp_path / "broken_npu-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-npu\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[torch.backends]\nbroken_npu = broken_npu:load\n")
    (tmp_path / "broken_npu.py").write_text("raise OSError('libascendcl.so: no such file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = asked("gloo", "29", "10")
    assert found["29"].state is State.MISSING
    assert "Failed to load the backend extension: broken_npu" in found["29"].said
    assert "because of OSError: libascendcl.so: no such file" in found["29"].said
    assert [found[row].state for row in ("0a", "10")] == [State.FOUND, State.FOUND]


def test_an_implementation_that_does_not_load_costs_its_own_rows() -> None:
    """The backend is asked all the same."""
    found = asked("gloo", "0b", "10", "30", implementation="tests.doctor.broken.raises:implementation")
    assert (found["0b"].state, found["10"].state) == (State.MISSING, State.FOUND)
    assert found["30"].said == "the implementation does not load (row 0b)"
