"""Files for programs: the schema of record files is what is written and read, and CTRF is what others expect."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import jsonschema
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from harness import cli
from harness.fields import is_deep
from harness.journal import as_line
from harness.report.ctrf import STATUSES, ctrf_of, milliseconds
from harness.report.output import json_document
from harness.report.read import RecordFileError, Run, read_run
from harness.verdict import LEVELS, Footer, Header, Record, Verdict
from harness.waivers import Waiver
from harness.worlds.base import Fate, Outcome
from tests import harmless
from tests.report_samples import file_of, full_run, row, run_of
from tests.test_untrusted_records import DOCUMENTS, record_files
from tests.untrusted_strategies import as_json, changed, inputs

DOCS = Path(__file__).resolve().parent.parent / "docs" / "formats.md"
SCHEMA: dict[str, Any] = json.loads((files("harness.report") / "record.schema.json").read_text(encoding="utf-8"))
LINES: dict[str, Any] = {"header": Header, "record": Record, "footer": Footer}
#: Every line is said to be valid or not by this.
CHECKER = jsonschema.Draft202012Validator(SCHEMA)
JSON_TYPES = {str: "string", int: "integer", float: "number", type(None): "null", dict: "object", list: "array"}


# The schema is that of the dataclasses.


def test_the_schema_is_one() -> None:
    """It is valid by the draft that it names."""
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", LINES)
def test_the_schema_has_every_field_and_no_other(name: str) -> None:
    """A line has the fields of its dataclass and its kind; required is what the reader requires."""
    part, cls = SCHEMA["$defs"][name], LINES[name]
    assert set(part["properties"]) == {"kind", *(field.name for field in fields(cls))}
    needed = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    assert set(part["required"]) == needed | {"kind"} | ({"schema"} if cls is Header else set())


@pytest.mark.parametrize("name", LINES)
def test_the_schema_has_the_types_of_the_fields(name: str) -> None:
    """Types, and types within lists and objects, are those that the dataclass declares."""
    for field, hint in get_type_hints(LINES[name]).items():
        told = SCHEMA["$defs"][name]["properties"][field]
        assert shape(told) == expected(hint), field


def expected(hint: Any) -> Any:
    """An annotation as JSON types: ``dict[str, float]`` is ``("object", "number")``."""
    if hint is Verdict:
        return "string"
    inner = get_args(hint)
    if isinstance(hint, types.UnionType):
        one, none = (expected(part) for part in inner)
        return (one[0], none, *one[1:]) if isinstance(one, tuple) else (one, none)
    if get_origin(hint) in (dict, list):
        within = () if inner[-1] is Any else (expected(inner[-1]),)
        return (JSON_TYPES[get_origin(hint)], *within) if within else JSON_TYPES[get_origin(hint)]
    return JSON_TYPES[hint]


def shape(told: Any) -> Any:
    """The same of a schema."""
    kinds = told["type"]
    within = told.get("items") or told.get("additionalProperties")
    if not within:
        return kinds if isinstance(kinds, str) else tuple(kinds)
    return (*([kinds] if isinstance(kinds, str) else kinds), shape(within))


def test_the_schema_knows_our_words() -> None:
    """Verdicts, levels, the fates of ranks and the keys of waivers are those of the code."""
    record = SCHEMA["$defs"]["record"]["properties"]
    assert record["verdict"]["enum"] == [str(verdict) for verdict in Verdict]
    assert tuple(record["level"]["enum"]) == LEVELS
    outcome = Outcome(0, Fate.RAISED).as_json()
    assert set(record["ranks"]["items"]["properties"]) == set(outcome)
    assert all(str(fate) in record["ranks"]["description"] for fate in Fate)
    assert all(field.name in record["waiver"]["description"] for field in fields(Waiver))


# What is written is valid, and what is valid is read.


@pytest.mark.parametrize("run", [full_run(), run_of(row("a")), run_of(status=None)])
def test_what_the_journal_writes_is_valid(run: Run) -> None:
    """Every line of a run with a row of each verdict and each field filled."""
    for line in (run.header, *run.records, *([run.footer] if run.footer else [])):
        CHECKER.validate(json.loads(as_line(line)))


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "passed"}, {"level": "shall"}, {"ratio": "0.5"}, {"checks": 1.5}, {"world_sizes": ["2"]},
        {"kind": "row"}, {"case": []}, {"ranks": {}}, {"waiver": {"issue": 3}}, {"features": None}, {"seconds": None},
    ],
)  # fmt: skip
def test_what_is_no_record_is_not_valid(change: dict[str, Any]) -> None:
    """The schema refuses values of other types and words that there are not."""
    good = row("a").as_json()
    assert CHECKER.is_valid(good)
    assert not CHECKER.is_valid({**good, **change})


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
    huge = any(isinstance(value, int) and abs(value) >= 2**63 for value in leaves(line))
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


# The documents tell the same.


def table(name: str) -> list[str]:
    """The fields of a line, as docs/formats.md has them."""
    part = SCHEMA["$defs"][name]
    head = ["| key | type | is |", "|---|---|---|"]
    return head + [
        f"| `{key}`{'' if key in part['required'] else ' ?'} | {kinds(told)} | {told['description']} |"
        for key, told in part["properties"].items()
    ]


def kinds(told: Any) -> str:
    """A type in words: ``array of string``, ``number or null``."""
    own = told.get("type", "string")
    words = own if isinstance(own, str) else " or ".join(own)
    within = told.get("items") or told.get("additionalProperties")
    return f"{words} of {kinds(within)}" if within else words


@pytest.mark.parametrize("name", LINES)
def test_the_documentation_has_a_line_for_each_field(name: str) -> None:
    """docs/formats.md has the very table that the schema makes."""
    assert "\n".join(table(name)) in DOCS.read_text(encoding="utf-8")


# CTRF.

#: What CTRF requires, and of what type, by its schema.
SUMMARY = {"tests", "start", "stop", *STATUSES}
TEST_KEYS = {
    "id", "name", "status", "duration", "suite", "message", "trace", "rawStatus", "tags", "type", "filePath", "extra",
}  # fmt: skip
ENVIRONMENT = {"reportName", "appName", "appVersion", "osPlatform", "testEnvironment", "healthy"}


def check_ctrf(report: Any) -> None:
    """A report has what CTRF requires, with its types, and no key that CTRF has no place for."""
    assert report["reportFormat"] == "CTRF"
    assert report["specVersion"].count(".") == 2
    assert set(report) <= {"reportFormat", "specVersion", "reportId", "timestamp", "generatedBy", "results"}
    results = report["results"]
    assert set(results) == {"tool", "summary", "tests", "environment", "extra"}
    assert results["tool"]["name"]
    assert set(results["summary"]) == SUMMARY | {"duration"}
    assert all(type(value) is int for value in results["summary"].values())
    assert results["summary"]["tests"] == len(results["tests"]) == sum(results["summary"][one] for one in STATUSES)
    assert set(results["environment"]) == ENVIRONMENT
    for test in results["tests"]:
        check_ctrf_test(test)
    assert len({test["id"] for test in results["tests"]}) == len(results["tests"])


def check_ctrf_test(test: Any) -> None:
    """One test has what CTRF requires."""
    assert {"name", "status", "duration"} <= set(test) <= TEST_KEYS
    assert test["name"]
    assert test["status"] in STATUSES
    assert type(test["duration"]) is int
    assert isinstance(test["extra"], dict)
    assert all(isinstance(word, str) for key in ("suite", "tags") for word in test.get(key, []))
    assert all(isinstance(test.get(key, ""), str) for key in ("message", "trace", "rawStatus", "filePath"))


def test_ctrf_has_our_verdicts_and_facts() -> None:
    """Each verdict has its status, is the raw status itself, and a row that was never written is pending."""
    report = ctrf_of(full_run())
    check_ctrf(report)
    found = {test["rawStatus"]: test["status"] for test in report["results"]["tests"]}
    assert found == {
        "pass": "passed", "fail": "failed", "stale waiver": "failed", "broken": "failed", "waived": "other",
        "not claimed": "skipped", "not run": "skipped", "missing": "pending",
    }  # fmt: skip
    passing = next(test for test in report["results"]["tests"] if test["rawStatus"] == "pass")
    facts = {"requirement": "sharding/PASS", "level": "must", "world": "threads", "ratio": 0.37, "checks": 41}
    assert facts.items() <= passing["extra"].items()


def test_what_ctrf_calls_failed_is_what_fails_the_run() -> None:
    """Red in a dashboard is red in pytest, neither more nor less."""
    for verdict in Verdict:
        [test] = ctrf_of(run_of(row("a", verdict)))["results"]["tests"]
        assert (test["status"] == "failed") is verdict.is_red


def test_ctrf_knows_a_row_again_in_the_next_run() -> None:
    """Ids are the same for the same row, also if its test has moved, so that dashboards can follow it."""
    rows = [row("a"), row("a", world="processes"), row("b")]
    moved = [replace(one, nodeid=one.nodeid.replace("t.py", "u.py"), seconds=3.0) for one in rows]
    before, after = (ctrf_of(run_of(*some))["results"]["tests"] for some in (rows, moved))
    assert [test["id"] for test in before] == [test["id"] for test in after]


def test_ctrf_has_times_in_milliseconds() -> None:
    """Start and stop since 1970, durations beside; an unreadable start is 1970 itself."""
    run = run_of(row("a", seconds=1.2345))
    summary = ctrf_of(run)["results"]["summary"]
    assert summary["start"] == 1_795_234_209_000
    assert (summary["stop"] - summary["start"], summary["duration"]) == (60_000, 60_000)
    assert ctrf_of(run)["results"]["tests"][0]["duration"] == 1234
    strange = replace(run, header=replace(run.header, started="once"), footer=None)
    summary = ctrf_of(strange)["results"]["summary"]
    assert (summary["start"], summary["stop"]) == (0, 1234)


@given(seconds=st.floats())
def test_any_duration_is_a_number_of_milliseconds(seconds: float) -> None:
    """Whatever a record says, it is an integer that every JSON reader knows."""
    assert 0 <= milliseconds(seconds) < 2**53


@inputs(60)
@given(data=record_files())
def test_any_record_file_becomes_ctrf(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever a record file holds, its report has what CTRF requires, and is ASCII JSON."""
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(data)
    harmless.start()
    run, refusal = harmless.tried(read_run, path, refusal=RecordFileError)
    if not refusal:
        with harmless.harmless():
            text = json_document(ctrf_of(run))
        check_ctrf(json.loads(text.encode("ascii")))


def test_the_command_prints_or_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout alone, or in the file that -o names; a file that is no record is a sentence and status 2."""
    record = file_of(full_run(), tmp_path / "run.jsonl")
    assert cli.main(["ctrf", str(record)]) == 0
    printed = capsys.readouterr().out
    check_ctrf(json.loads(printed))
    assert cli.main(["ctrf", str(record), "-o", str(tmp_path / "ctrf.json")]) == 0
    assert (tmp_path / "ctrf.json").read_text() == printed
    for words in (["nowhere.jsonl"], [str(record), "-o", str(record)]):
        assert cli.main(["ctrf", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
