"""The doctor as a command: what it is asked, what it says, and what its documents say."""

from __future__ import annotations

import subprocess
import sys

from harness.doctor import device, findings_text, groups, imports, requirements
from harness.doctor.checks import Check, Finding, NotTried, Status, Wrong, answer, last_line, of_ranks
from harness.doctor.examination import Examination
from tests import ROOT as ROOT

# What it is asked, and what it says.


def every_check() -> list[Check]:
    """All checks, in the order of asking."""
    probes = [*device.PROBES.values(), *groups.PROBES.values()]
    return [*imports.CHECKS, *(probe.check for probe in probes), *map(requirements.check, requirements.tests())]


def examined(**states: Status) -> Examination:
    """A finished examination in which all is found but what is given, by ids with underscores."""
    findings = [
        Finding(check, states.get(check.id.replace("-", "_").replace("/", "_"), Status.FOUND))
        for check in every_check()
    ]
    return Examination("torch", "gloo", findings=findings)


def test_the_status_says_whether_a_must_is_broken_or_not_all_was_asked() -> None:
    """0, 1 and 2, as the help says; what is broken weighs more than what was not asked."""
    late, both = examined(), examined(storage_resizing=Status.MISSING)
    late.incomplete = both.incomplete = True
    ends = [examined(), examined(collectives_strided=Status.WRONG), examined(streams=Status.WRONG), late, both]
    assert [findings_text.status(one) for one in ends] == [0, 0, 1, 2, 1]


def test_what_counts_comes_first_in_what_to_do() -> None:
    """Advice on what a MUST depends on stands before other advice, with what breaks and what to do."""
    text = findings_text.text(examined(collectives_all_to_all=Status.MISSING, collectives_average=Status.WRONG))
    advice = text.partition("What to do")[2]
    assert advice.index("collectives/average wrong:") < advice.index("collectives/all-to-all missing (should):")
    assert "without it: " in advice
    assert "do: implement ReduceOp.AVG" in advice


def test_the_verdict_is_repeated_below_the_advice() -> None:
    """It stands below the findings, which came one by one, and again as the last line; without advice, once."""
    lines = findings_text.text(examined(collectives_average=Status.WRONG)).splitlines()
    assert lines[2] == lines[-1]
    assert "a MUST depends on collectives/average (" in lines[-1]
    lines = findings_text.text(examined()).splitlines()
    assert lines[-1].startswith("fsdp-conformance doctor: ")
    assert len(lines) == 3


def test_each_finding_is_noticed_as_it_comes() -> None:
    """The examiner learns of a finding before the next check."""
    noticed: list[Finding] = []
    one, two, *_ = every_check()
    asking = Examination("torch", "gloo", notice=noticed.append)
    asking.leave_out(one, "there is none")
    asking.ask(two, "", lambda seconds: Finding(two, Status.FOUND if len(noticed) == 1 else Status.WRONG))
    assert [found.state for found in noticed] == [Status.NOT_TRIED, Status.FOUND]
    assert noticed == asking.findings


def test_what_a_vendor_says_cannot_steer_a_terminal() -> None:
    """Control characters in a message of a stranger are spelt out."""
    said = answer(lambda: exec("raise RuntimeError('\\x1b[2J\\nok')"))
    assert of_ranks(every_check()[0], [said]).said == "RuntimeError: ␛[2J ok"


def raising(error: BaseException) -> str:
    """Raise it."""
    raise error


def test_an_answer_is_a_state() -> None:
    """Words are found, refusals are missing, wrong answers wrong, whatever else is raised too."""
    assert answer(lambda: "two") == ["found", "two"]
    assert answer(lambda: raising(SystemExit(3))) == ["missing", "SystemExit: 3"]
    assert answer(lambda: raising(Wrong("2, not 3"))) == ["wrong", "2, not 3"]
    assert answer(lambda: raising(NotTried("none"))) == ["not tried", "none"]


def test_ranks_that_differ_are_wrong() -> None:
    """One rank that refuses alone is wrong, by its number; what is no answer is wrong, too."""
    check = every_check()[0]
    assert of_ranks(check, [["found", ""], ["missing", "no"]]) == Finding(check, Status.WRONG, "rank 1: no")
    assert of_ranks(check, [["missing", "no"], ["missing", "no"]]) == Finding(check, Status.MISSING, "no")
    assert of_ranks(check, [["found", ""], ["splendid", ""]]).state is Status.WRONG


def test_the_root_of_an_error_is_told() -> None:
    """What is at the root of a chain of errors comes with its end."""
    error = RuntimeError("cannot load")
    error.__cause__ = OSError("no driver")
    assert last_line(error) == "RuntimeError: cannot load (because of OSError: no driver)"


def test_the_command_imports_nothing_of_torch() -> None:
    """What examines a broken installation does not need it."""
    code = "import sys, harness.doctor.__main__\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_advice_is_of_requirements_that_are_run() -> None:
    """No advice is left of a requirement that is gone or has another name."""
    assert {*requirements.ADVICE} <= {test.requirement for test in requirements.tests()}


def test_the_checks_are_in_the_docs() -> None:
    """docs/doctor.md has each check of the doctor's own, in order, with its level and the words of the command."""
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    own = [check for check in every_check() if "/" not in check.id]
    lines = [f"| `{check.id}` | {check.what} | {check.without} |" for check in own]
    assert [line for line in text.splitlines() if line in lines] == lines
    assert all(f"`{name}`" in text for name in requirements.OTHERS)


def test_the_fields_of_the_json_are_in_the_docs() -> None:
    """Each field is described under its name."""
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    said = findings_text.data(examined())
    for name in (*said, *said["checks"][0]):
        assert f"`{name}`" in text
