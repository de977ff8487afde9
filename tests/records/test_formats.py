"""Record files for programs: the schema that users print is what is written and read, and what the docs explain."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from harness.data.type_checks import is_deep
from harness.records.codec import as_line
from harness.records.reader import Run, read_run
from harness.records.record import Line
from harness.worlds.base import Fate, Outcome
from tests import ROOT
from tests.report.report_samples import full_run, row, run_of
from tests.untrusted.strategies import as_json, changed, inputs
from tests.untrusted.test_records import DOCUMENTS

DOCS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
SCHEMA: dict[str, Any] = msgspec.json.schema(Line)
PARTS: dict[str, Any] = SCHEMA["$defs"]
CHECKER = jsonschema.Draft202012Validator(SCHEMA)


# The schema, and the documents.


def test_the_documented_line_prints_the_schema() -> None:
    """The line of docs/formats.md prints a JSON Schema of the draft that it names."""
    [line] = re.findall(r"^python (-c .*)$", DOCS, re.MULTILINE)
    printed = subprocess.run([sys.executable, *shlex.split(line)], check=True, capture_output=True, text=True, cwd=ROOT)
    assert json.loads(printed.stdout) == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", ["Header", "Record", "Footer"])
def test_the_documentation_has_a_line_for_each_field(name: str) -> None:
    """docs/formats.md has the key and the type of each field, in order, and says what it is."""
    section = DOCS.partition(f"\n### {name}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (`\w+`(?: \?)?) \| (.+?) \| .{9,} \|$", section, re.MULTILINE)
    part = PARTS[name]
    told = {f"`{key}`{'' if key in part['required'] else ' ?'}": kinds(of) for key, of in part["properties"].items()}
    assert rows == list(told.items())


def kinds(told: Any) -> str:
    """A type in words: ``array of string``, ``number or null``."""
    if "$ref" in told:
        return kinds(PARTS[told["$ref"].rpartition("/")[2]])
    if "anyOf" in told:
        return " or ".join(map(kinds, told["anyOf"]))
    if "enum" in told:
        return "string" if isinstance(told["enum"][0], str) else "integer"
    within = told.get("items") or told.get("additionalProperties")
    own: str = told["type"]
    return f"{own} of {kinds(within)}" if within else own


def test_what_is_recorded_of_a_rank_is_in_the_schema() -> None:
    """The keys of a rank's outcome are those of the schema, and the documentation has each fate."""
    assert set(PARTS["RankOutcome"]["properties"]) == set(Outcome(0, Fate.RAISED).as_json())
    [described] = re.findall(r"^\| `ranks` .*$", DOCS, re.MULTILINE)
    assert all(str(fate) in described for fate in Fate)


# What is written is valid, and what is valid is read.


@pytest.mark.parametrize("run", [full_run(), run_of(row("a")), run_of(status=None)])
def test_what_the_journal_writes_is_valid(run: Run) -> None:
    """Every line of a run with a row of each verdict and each field filled."""
    for line in (run.header, *run.records, *([run.footer] if run.footer else [])):
        CHECKER.validate(json.loads(as_line(line)))


@inputs(150)
@given(tree=st.sampled_from(DOCUMENTS).flatmap(lambda one: changed(one, most=1)))
def test_what_is_valid_is_read(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    """A line that the schema lets pass is read back without a note, in whatever way it was changed."""
    line = sane(tree)
    if line is None or not CHECKER.is_valid(line):
        event("not valid")
        return
    event(f"a {line['kind']}")
    kind = line["kind"]
    document = [line if kind == "header" else DOCUMENTS[0], *([line] if kind == "record" else [])]
    document += [line if kind == "footer" else DOCUMENTS[-1]]
    path = tmp_path_factory.getbasetemp() / "valid.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in document), encoding="utf-8")
    assert read_run(path).damage == []


def sane(tree: Any) -> Any:
    """The tree as JSON, if its numbers and depth are such as JSON Schema has words for: 2.0 is an integer there."""
    try:
        line = json.loads(as_json(tree), parse_float=lambda text: float(text) + 0.125)
    except (ValueError, RecursionError):
        return None
    numbers = [value for value in leaves(line) if isinstance(value, (int, float))]
    huge = any(abs(one) >= 2**63 if isinstance(one, int) else not math.isfinite(one) for one in numbers)
    return None if huge or is_deep(line) else line


def leaves(tree: Any) -> Iterator[Any]:
    """The values of a JSON tree that hold no others."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else None
        if inner is None:
            yield one
        else:
            waiting += inner
