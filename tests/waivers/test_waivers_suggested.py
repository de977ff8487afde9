"""Suggested waivers: what a run knows is filled in, and the file is refused until a person has said the rest."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import toml
from msgspec.structs import replace

from harness.data.text import visible
from harness.records.reader import Run
from harness.records.record import Verdict
from harness.waivers.suggest import Unwritable, suggestions, toml_string
from harness.waivers.waiver import read_waivers
from tests.report.report_samples import row, run_of
from tests.untrusted import harmless
from tests.untrusted.strategies import POISONS, TEXTS, inputs
from tests.untrusted.test_records import any_runs
from tests.waivers.test_waivers_checked import ran, said


def filled(text: str, **values: str) -> str:
    """The suggestion with these keys filled in."""
    for key, value in values.items():
        text = text.replace(f'{key} = ""', f"{key} = {value}")
    return text


FILLING = {"issue": '"https://example.org/1"', "reason": '"it is off"', "expires": "2027-03-01"}


def test_a_suggestion_is_refused_until_all_is_filled_in(tmp_path: Path) -> None:
    """With any of issue, reason and last day missing the file is refused; with all of them it waives the row."""
    run, path = ran(Verdict.FAIL, Verdict.FAIL), tmp_path / "w.toml"
    for count, keys in ((n, keys) for n in range(4) for keys in itertools.combinations(FILLING, n)):
        path.write_text(filled(suggestions(run), **{key: FILLING[key] for key in keys}), encoding="utf-8")
        if count < len(FILLING):
            with pytest.raises(ValueError, match=r"at `\$.waiver\[0\]"):
                read_waivers(path)
    [one] = read_waivers(path)
    assert (one.requirement, one.subject, one.versions) == ("sharding/a", "torch", "==2.13")
    assert said(one, runs=[run]) == ["needed"]


def test_what_a_person_must_fill_in_is_marked() -> None:
    """Each empty value has the words FILL IN beside it."""
    lines = [line for line in suggestions(ran(Verdict.FAIL)).splitlines() if '= ""' in line]
    assert [line.partition(" = ")[0] for line in lines] == ["issue", "reason", "expires"]
    assert all("# FILL IN: " in line for line in lines)


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (ran(Verdict.FAIL, Verdict.FAIL), [{"requirement": "sharding/a"}]),
        (ran(Verdict.FAIL, Verdict.PASS), [{"nodeid": "suites/t.py::a[threads]"}]),
        (ran(Verdict.NOT_RUN, Verdict.FAIL), [{"nodeid": "suites/t.py::a[processes]"}]),
        (ran(Verdict.PASS, Verdict.WAIVED), []),
        (ran(Verdict.BROKEN, Verdict.STALE_WAIVER), []),
    ],
)
def test_no_more_is_suggested_than_fails(run: Run, names: list[dict[str, str]]) -> None:
    """A whole requirement where all its rows fail, else node ids; nothing for what is waived, broken or passes."""
    stanzas = toml.decode(suggestions(run)).get("waiver", [])
    assert [{k: v for k, v in one.items() if k in ("requirement", "nodeid")} for one in stanzas] == names


def test_a_row_is_named_where_others_are_not_known() -> None:
    """In a run of one world, or one that was cut short, failing rows say nothing of the others."""
    run = ran(Verdict.FAIL)
    one_world = replace(run, header=replace(run.header, worlds=["threads"]))
    short = replace(run, header=replace(run.header, plan=[*run.header.plan, "suites/t.py::a[processes]"]))
    for one in (one_world, short):
        assert "requirement = " not in suggestions(one)


def test_a_waiver_that_ran_out_is_not_written_again() -> None:
    """It is told of, and to be seen to where it stands."""
    old = {"issue": "https://example.org/7", "reason": "known", "expires": "2001-01-01"}
    text = suggestions(run_of(row("a", Verdict.STALE_WAIVER, cause="disagreement", waiver=old)))
    assert toml.decode(text) == {}
    assert "its waiver (https://example.org/7) ran out" in text


@pytest.mark.parametrize(
    ("version", "subject", "versions"),
    [
        ("torch 2.13.0+cpu", "torch", "==2.13.0"),
        ("torch 2.14.0.dev20261101+cpu", "torch", "==2.14.0.dev20261101"),
        ("my shard 1.0", "my shard", "==1.0"),
        ("mine git-4f2a", "mine", None),
        ("my shard", "my shard", None),
    ],
)
def test_subject_and_version_are_those_that_were_judged(version: str, subject: str, versions: str | None) -> None:
    """A version that PEP 440 knows is the range; another has none."""
    [one] = toml.decode(suggestions(ran(Verdict.FAIL, version=version)))["waiver"]
    assert (one["subject"], one.get("versions")) == (subject, versions)


@inputs(60)
@given(text=TEXTS)
def test_a_text_is_written_and_read_back(text: str) -> None:
    """Any text comes back by TOML's own reader, in one visible line; what TOML cannot hold is refused."""
    try:
        written = toml_string(text)
    except Unwritable:
        assert any(0xD800 <= ord(char) < 0xE000 for char in text)
        return
    assert toml.decode(f"x = {written}") == {"x": text}
    assert visible(written) == written
    assert "\n" not in written


@inputs(30)
@given(run=any_runs(), poison=st.sampled_from(POISONS))
def test_whatever_a_record_says_a_suggestion_is_refused_until_filled(
    tmp_path_factory: pytest.TempPathFactory, run: Run, poison: str
) -> None:
    """Whatever fails, and however it is called: TOML that names it, refused as it is, and read once it is filled in."""
    waivers = tmp_path_factory.getbasetemp() / "suggested.toml"
    bad = row("x", Verdict.FAIL, nodeid=f"t.py::{poison}[threads]", message=poison, statement=poison)
    run = replace(run, records=[*run.records, bad])
    with harmless.harmless():
        text = suggestions(run)
    assert visible(text) == text
    waivers.write_text(text, encoding="utf-8")
    stanzas = toml.decode(text).get("waiver", [])
    named = {one.get(key) for one in stanzas for key in ("requirement", "nodeid")}
    assert "No stanza" in text or {bad.requirement, bad.nodeid} & named
    if stanzas:
        with pytest.raises(ValueError, match=r"length >= 1 - at .*issue`"):
            read_waivers(waivers)
        waivers.write_text(filled(text, **FILLING), encoding="utf-8")
        assert len(read_waivers(waivers)) == len(stanzas)
