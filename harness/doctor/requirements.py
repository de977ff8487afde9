"""The chapter of collectives, and some requirements of training, run by pytest as ``fsdp-conformance run`` does.

A requirement that fails is a finding under its own id, with what to do about it; one whose ranks raise is ``missing``.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness.commands.pytest_process import run_pytest
from harness.doctor.checks import Check, Finding, Status
from harness.records.command_lines import located
from harness.records.provenance import suites_folder
from harness.records.reader import RecordFileError, read_run
from harness.records.record import Record, Verdict
from harness.requirements.finder import SuiteTest, suite_tests
from harness.vendor.load import Subject
from harness.worlds.base import Fate

CHAPTER = "collectives/"
#: Two groups of the same ranks, a training step, and offloading to pinned memory.
OTHERS = ("communication/group-apart-trains", "parity/exact", "offload/pinned")

_GARBAGE = "parameters cannot be unsharded, or are other ranks' or garbage"
_OFF = "gradients cannot be reduced, or are wrong"
_SUM = "implement `allreduce` and `_reduce_scatter_base` of the c10d backend by SUM, right for every size and dtype"
_AXES = "hybrid sharding, and tensor parallelism beside FSDP, hang or reduce over wrong ranks"
_OWN = "number the ranks of `new_group` from 0, and keep the buffers and channels of groups apart"
_STRIDED = (
    "FSDP sends contiguous memory, so it is right; users' calls get wrong numbers",
    "copy such memory, or raise",
)
#: What breaks without a requirement, and what to do, where its message does not say so.
ADVICE = {
    "collectives/all-gather": (_GARBAGE, "implement `_allgather_base` and `allgather`, for bytes too"),
    "collectives/all-gather-in-place": (
        "unsharded parameters are corrupted: FSDP gathers in place",
        "read the input before the output is written, and allow the two to share memory",
    ),
    "collectives/from-one": (_GARBAGE, "implement `broadcast` and `scatter` of the c10d backend, for bytes too"),
    "collectives/exact": (_OFF, _SUM),
    "collectives/sum": (_OFF, _SUM),
    "collectives/average": (
        "FSDP reduces float32 and bfloat16 by AVG: backward fails, or gradients are off by a factor",
        "implement ReduceOp.AVG: sum, then divide once by the number of ranks; or have users call "
        "`set_force_sum_reduction_for_comms(True)`",
    ),
    "collectives/premul-sum": (
        "`set_gradient_divide_factor` with another factor than the number of ranks fails in backward",
        "implement ReduceOp.PREMUL_SUM without writing to the input; or declare `lacks={'premul_sum': reason}`: users "
        "then call `set_force_sum_reduction_for_comms(True)`",
    ),
    "collectives/fresh": (_GARBAGE, "keep nothing of earlier calls: tensors at one address may hold other numbers"),
    "collectives/untouched": (
        "what lies beside an output, or is sent twice, changes silently",
        "scale and pad in memory of your own, never in the caller's input",
    ),
    "collectives/async": (
        "numbers are read before they are there, or after their memory was handed out again: wrong now and then",
        "hold tensors in the `Work` until it is done; after `wait()` the current stream must see the result",
    ),
    "collectives/sub-groups": (_AXES, _OWN),
    "collectives/two-groups": (_AXES, _OWN),
    "collectives/dtensor": (
        "training may work, and then state dicts, clipping and `DTensor.full_tensor()` fail or give other numbers",
        "implement the coalesced and functional forms (`all_gather_single_coalesced`, before torch 2.13 "
        "`allgather_into_tensor_coalesced`, and so on); have each return a `Work`",
    ),
    "collectives/strided": _STRIDED,
    "collectives/strided-others": _STRIDED,
    "communication/group-apart-trains": ("`set_separate_reduce_scatter_group` fails, or two groups hang", _OWN),
    "parity/exact": ("nothing else can be right", "mend what is above first; then run the suites: they say more"),
    "offload/pinned": (
        "CPUOffloadPolicy fails with its default, `pin_memory=True`",
        "implement the pinned-memory allocator and `is_pinned`; or declare `lacks={'pinned memory': reason}`",
    ),
}


def tests() -> list[SuiteTest]:
    """The tests of the requirements that are run, in order."""
    found = {test.requirement: test for test in suite_tests(_folder())}
    chapter = [test for name, test in found.items() if name.startswith(CHAPTER)]
    return [*chapter, *(found[name] for name in OTHERS)]


def check(test: SuiteTest) -> Check:
    """A requirement as a check; what it needs is the name of its test."""
    what = test.nodeid.rpartition("::test_")[2].replace("_", " ")
    return Check(test.requirement, what, *ADVICE.get(test.requirement, ("", "")), test.level)


def judged(subject: Subject, wanted: list[SuiteTest], patience: float, limit: float) -> tuple[list[Finding], str]:
    """Run them within ``limit`` seconds, ``patience`` each; what was found by then, and pytest's last line."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        with open(Path(folder) / "output", "w+b") as output:
            _, is_interrupted = run_pytest(_line(subject, wanted, patience, record), limit, output)
            output.seek(0)
            last = output.read().decode(errors="replace").rstrip().rpartition("\n")[2]
        if is_interrupted:
            raise KeyboardInterrupt
        rows: dict[str, Record] = {}
        with suppress(RecordFileError):
            rows = {row.requirement: row for row in read_run(record).records}
    return [_finding(check(test), rows[test.requirement]) for test in wanted if test.requirement in rows], last


def _line(subject: Subject, wanted: list[SuiteTest], patience: float, record: Path) -> list[str]:
    options = {"implementation": subject.implementation, "backend": subject.backend, "record": str(record)}
    options |= {"world": "processes", "hypothesis-profile": "unshrunk", "timeout": f"{patience:g}"}
    named = [f"--{name}={value}" for name, value in options.items()]
    tests = [word for test in wanted for word in located(test.nodeid, _folder(), Path.cwd())]
    return [*tests, *named, "-q", "-p", "no:cacheprovider"]


def _folder() -> Path:
    folder = suites_folder()
    assert folder is not None, "the suites are installed with the harness"
    return folder


_STATES = {Verdict.PASS: Status.FOUND, Verdict.FAIL: Status.WRONG, Verdict.WAIVED: Status.WRONG}


def _finding(need: Check, row: Record) -> Finding:
    """What a record says of a requirement; one that is waived counts no more."""
    state = _STATES.get(row.verdict, Status.NOT_TRIED)
    if state is Status.WRONG and row.cause == Fate.RAISED.value:
        state = Status.MISSING
    if row.verdict is Verdict.WAIVED:
        need = replace(need, level="waived")
    return Finding(need, state, row.message, row.seconds)
