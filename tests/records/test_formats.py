"""Files for programs: the schema of record files is what is written and read, and CTRF is what others expect."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib.resources import files
from typing import Any, get_args, get_origin, get_type_hints

import jsonschema
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from harness.data.kinds import LEVELS
from harness.data.type_checks import is_deep
from harness.records.reader import Run, read_run
from harness.records.record import Footer, Header, Record, Verdict
from harness.records.writer import as_line
from harness.waivers.waiver import Waiver
from harness.worlds.base import Fate, Outcome
from tests import ROOT
from tests.report.report_samples import full_run, row, run_of
from tests.untrusted.strategies import as_json, changed, inputs
from tests.untrusted.test_records import DOCUMENTS

DOCS = ROOT / "docs" / "formats.md"
SCHEMA: dict[str, Any] = json.loads((files("harness.records") / "record.schema.json").read_text(encoding="utf-8"))
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
