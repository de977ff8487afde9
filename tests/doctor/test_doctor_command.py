"""The doctor as a command: what it is asked, what it says, and what its documents say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from harness import cli
from harness.doctor import findings_text
from harness.doctor.probes import device, groups, operations
from harness.doctor.probes.answer import Wrong, finding, last_line
from harness.doctor.rows import Finding, State, counts
from harness.doctor.supervise import Examination
from harness.doctor.table import all_rows, in_order
from tests import ROOT as ROOT

pytestmark = pytest.mark.alone


# What it is asked, and what it says.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "glo"], "unknown backend 'glo': expected one of auto, gloo"),
        (["--backend", "no_such_vendor.conformance:backend"], "no module 'no_such_vendor'; is it installed here"),
        (["--backend", "tests.doctor.broken.values:absent"], "module 'tests.doctor.broken.values' has no 'absent'"),
        (["--implementation", "torhc", "--backend", "gloo"], "unknown implementation 'torhc'"),
    ],
)
def test_a_name_that_is_none_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that names nothing is status 2 and a sentence, since no vendor is to blame."""
    assert cli.main(["doctor", *arguments]) == 2
    out, said = capsys.readouterr()
    assert (out, said.count("\n")) == ("", 1)
    assert words in said


def test_a_patience_out_of_bounds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and what was expected."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--patience", "0"])
    assert ended.value.code == 2
    assert "expected 1 to 3600 seconds, got 0" in capsys.readouterr().err


def test_a_must_depends_on_what_is_not_declared() -> None:
    """What a backend declares in ``lacks`` may be missing; wrong it may never be."""
    premul = all_rows()["16c"]
    assert counts(premul, State.MISSING)
    assert not counts(premul, State.MISSING, frozenset({"premul_sum"}))
    assert counts(premul, State.WRONG, frozenset({"premul_sum"}))
    assert not counts(all_rows()["15c"], State.WRONG)


def examined(**states: State) -> Examination:
    """A finished examination in which all is found but what is given."""
    rows = {number: Finding(states.get(f"_{number}", State.FOUND)) for number in all_rows()}
    return Examination("torch", "gloo", findings=rows)


def test_the_status_says_whether_a_must_is_broken_or_time_ran_out() -> None:
    """0, 1 and 2, as the help says; what is broken weighs more than what was not asked."""
    late, both = examined(), examined(_10=State.MISSING)
    late.ran_out = both.ran_out = True
    assert [findings_text.status(one) for one in (examined(), examined(_10=State.MISSING), late, both)] == [0, 1, 2, 1]


def test_what_counts_comes_first_in_what_to_do() -> None:
    """Advice on a row that a MUST depends on stands before other advice, with what breaks and what to do."""
    text = findings_text.text(examined(_9=State.MISSING, _16b=State.WRONG))
    advice = text.partition("What to do")[2]
    assert advice.index("16b wrong") < advice.index("9 missing (should)")
    assert "without it: " in advice
    assert "do: implement ReduceOp.AVG" in advice
    assert "a MUST depends on 16b" in text.splitlines()[0]


def test_what_a_vendor_says_cannot_steer_a_terminal() -> None:
    """Control characters in a message of a stranger are spelt out."""
    found = finding(lambda: exec("raise RuntimeError('\\x1b[2J\\nok')"))
    assert found.said == "RuntimeError: ␛[2J ok"


def test_an_answer_is_a_state() -> None:
    """Words are found, refusals are missing, wrong answers wrong, whatever else is raised too."""
    assert finding(lambda: "two") == Finding(State.FOUND, "two")
    assert finding(lambda: exec("raise SystemExit(3)")) == Finding(State.MISSING, "SystemExit: 3")

    def wrong() -> str:
        raise Wrong("2, not 3")

    assert finding(wrong) == Finding(State.WRONG, "2, not 3")


def test_the_root_of_an_error_is_told() -> None:
    """What is at the root of a chain of errors comes with its end."""
    error = RuntimeError("cannot load")
    error.__cause__ = OSError("no driver")
    assert last_line(error) == "RuntimeError: cannot load (because of OSError: no driver)"


def test_the_command_imports_nothing_of_torch() -> None:
    """What examines a broken installation does not need it."""
    code = "import sys, harness.commands.doctor\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_row_has_a_probe() -> None:
    """No row is without somebody who asks it, and nobody asks a row that is not there."""
    alone = {"29", "0a", "0b", "21a"}
    asks = {name.partition(":")[0] for name in groups.ASKS}
    assert {*alone, *device.PROBES, *operations.PROBES, *asks} == set(all_rows())


def test_the_table_of_rows_is_in_the_docs() -> None:
    """docs/doctor.md has each row, in order, with its level and the words of the command."""
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (\d+[a-d]?) \|.*\|$", text, re.MULTILINE)
    assert table == list(in_order())
    for row in in_order().values():
        assert f"| {row.number} | {row.level} | {row.what} | {row.without} | {row.todo} |" in text


def test_the_fields_of_the_json_are_in_the_docs() -> None:
    """Each field is described under its name."""
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    said = findings_text.data(examined())
    for name in (*said, *said["rows"][0]):
        assert f"`{name}`" in text
