"""Waivers: read from TOML with clear refusals, matched by row and subject, and never a way to hide a pass."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.records.record import Verdict
from harness.vendor.load import Subject
from harness.waivers.waiver import Waiver, read_waivers, unmatched, waived
from tests import ROOT
from tests.waivers.stanzas import stanza

TODAY = date(2026, 6, 15)
SUITES = ROOT / "suites" / "waivers.toml"
GOOD = stanza("offload/pinned", "torch", "2027-03-01", reason="pinning happens on the wrong device")


def waiver(
    requirement: str = "a/b",
    nodeid: str = "",
    subject: str = "torch",
    expires: date = TODAY,
    versions: str = "",
    sporadic: bool = False,
    **values: str,
) -> Waiver:
    """A waiver for one requirement or one row, or for a combination of values in it."""
    named = "" if nodeid else requirement
    return Waiver(subject, "https://example.org/1", "known", expires, named, nodeid, versions, values, sporadic)


def test_a_file_is_read_as_written(tmp_path: Path) -> None:
    """Every field of every entry comes back, and as JSON the date is a string."""
    (tmp_path / "w.toml").write_text(GOOD + GOOD.replace("requirement", "nodeid"))
    first, second = read_waivers(tmp_path / "w.toml")
    assert first == Waiver(
        "torch",
        "https://example.org/1",
        "pinning happens on the wrong device",
        date(2027, 3, 1),
        "offload/pinned",
    )
    assert (second.requirement, second.nodeid) == ("", "offload/pinned")
    assert first.as_json()["expires"] == "2027-03-01"
    assert first.versions == ""


def test_a_range_of_versions_is_read_as_written(tmp_path: Path) -> None:
    """The versions that a waiver is for are kept, and shown, in the words of the file."""
    (tmp_path / "w.toml").write_text(f'{GOOD}versions = ">=2.11,<2.14"\n')
    [one] = read_waivers(tmp_path / "w.toml")
    assert one.versions == one.as_json()["versions"] == ">=2.11,<2.14"


def test_an_empty_file_waives_nothing(tmp_path: Path) -> None:
    """No entries are no mistake."""
    (tmp_path / "w.toml").write_text("# nothing is waived\n")
    assert read_waivers(tmp_path / "w.toml") == ()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, and one that is not text, are the user's mistakes and are said so."""
    with pytest.raises(ValueError, match=r"cannot be read .*; name another with --waivers"):
        read_waivers(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"bytes\.toml: 'utf-8' codec can't decode"):
        read_waivers(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("one", "covers"),
    [
        (waiver("a/b"), True),
        (waiver("a/c"), False),
        (waiver(nodeid="t.py::x[threads]"), True),
        (waiver(nodeid="t.py::x[processes]"), False),
        (waiver("a/b", subject="other"), False),
        (waiver(nodeid="t.py::x[threads]", subject="other"), False),
    ],
)
def test_a_waiver_covers_its_requirement_or_its_row(one: Waiver, covers: bool) -> None:
    """A waiver speaks of one subject, and of all rows of a requirement or of one row."""
    assert one.covers("a/b", "t.py::x[threads]", "torch", "2.13.0") is covers


@pytest.mark.parametrize(
    ("versions", "version", "covers"),
    [
        ("", "2.13.0", True),
        ("", "of today", True),
        (">=2.11,<2.14", "2.11.0", True),
        (">=2.11,<2.14", "2.13.1+cu130", True),
        (">=2.11,<2.14", "2.14.0", False),
        (">=2.11,<2.14", "2.14.0.dev20261101+cpu", False),
        (">=2.11,<2.14", "2.13.0.dev20260501+cpu", True),
        ("==2.13.*", "2.13.0+cpu", True),
        ("==2.13.*", "2.12.1", False),
        ("!=2.13.0", "2.13.0+cpu", False),
        (">=2.11", "", False),
        (">=2.11", "of today", False),
    ],
)
def test_a_waiver_covers_the_versions_that_it_names(versions: str, version: str, covers: bool) -> None:
    """Of its subject a waiver covers the versions in its range, nightly and local builds as PEP 440 orders them."""
    assert waiver(versions=versions).covers("a/b", "t.py::x[threads]", "torch", version) is covers


#: Of defects that torch has mended: the last version with them that was tried, and the first one without.
MENDED = {
    "autograd/reset-after-backward": ("2.14.1", "2.15.0"),
    "accumulation/reset": ("2.14.1", "2.15.0"),
    "accumulation/hsdp-other-parameters": ("2.14.1", "2.15.0"),
    "accumulation/hsdp-passed-at-last": ("2.14.1", "2.15.0"),
    "accumulation/late-parameters": ("2.14.1", "2.15.0"),
    "accumulation/low-zeros": ("2.14.1", "2.15.0"),
    "accumulation/grad-dtype": ("2.14.1", "2.15.0"),
    "tensor-parallel/reduce-dtype": ("2.14.1", "2.15.0"),
    "passes/last-dim-inference": ("2.14.1", "2.15.0"),
    "scripts/thawed-precision": ("2.13.0", "2.14.0"),
    "precision/groups": ("2.12.1", "2.13.0"),
    "precision/recomputed": ("2.12.1", "2.13.0"),
    "precision/transforms": ("2.12.1", "2.13.0"),
    "autograd/slopes": ("2.12.1", "2.13.0"),
    "passes/forward-methods-in-a-list": ("2.12.1", "2.13.0"),
    "passes/no-inputs": ("2.12.1", "2.13.0"),
    "offload/update-in-backward": ("2.12.1", "2.13.0"),
    "scripts/offload": ("2.12.1", "2.13.0"),
    "entry/containers-with-forward": ("2.11.0", "2.12.0"),
    "generated/prefetch": ("2.11.0", "2.12.0"),
    "refusals/placements": ("2.11.0", "2.12.0"),
    "parameters/tied-across-groups": ("2.11.0", "2.12.0"),
    "parameters/other-dtypes": ("2.11.0", "2.12.0"),
    "parameters/dtypes-in-groups": ("2.11.0", "2.12.0"),
    "autograd/filled": ("2.11.0", "2.12.0"),
    "reshard/to-group-frozen": ("2.11.0", "2.12.0"),
    "precision/other-dtypes": ("2.11.0", "2.12.0"),
}


def test_a_combination_is_waived_wherever_it_is_the_only_cause() -> None:
    """In all of its chapter, and as part of a larger combination; another cause without a waiver is a failure."""
    pair, other = waiver("a/*", dtype="output", runs="twice"), waiver("a/*", net="tied")
    cause = {"dtype": "output", "runs": "twice", "mesh": "2"}
    assert judged((pair,)).waiver("a/b", "t.py::x[threads]", [cause]) == pair
    assert judged((pair,)).waiver("c/b", "t.py::x[threads]", [cause]) is None
    for causes in ([], [{"dtype": "output"}], [cause, {"net": "tied"}]):
        assert judged((pair,)).waiver("a/b", "t.py::x[threads]", causes) is None
    assert judged((pair, other)).waiver("a/b", "t.py::x[threads]", [cause, {"net": "tied"}]) == pair
    assert judged((pair, waiver("a/b"))).waiver("a/b", "t.py::x[threads]", []) == waiver("a/b")
    assert pair.as_json()["requirement"] == "a/* with dtype=output, runs=twice"


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ('requirement = "a/*"', "expected values beside all requirements of a chapter"),
        ('nodeid = "t.py::x"\nvalues = {net = "tied"}', "expected a requirement, or a chapter and /\\*, beside values"),
        ('requirement = "a/*"\nvalues = {net = 1}', "Expected `str`"),
    ],
)
def test_combinations_and_chapters_go_together(words: str, refusal: str, tmp_path: Path) -> None:
    """A whole chapter is never waived, and a row has no combinations of its own."""
    text = GOOD.replace('requirement = "offload/pinned"', words)
    (tmp_path / "w.toml").write_text(text)
    with pytest.raises(ValueError, match=refusal):
        read_waivers(tmp_path / "w.toml")


@pytest.mark.parametrize("requirement", MENDED)
def test_a_defect_that_torch_has_mended_is_waived_for_the_versions_that_have_it(requirement: str) -> None:
    """A row that passes on a newer torch is no stale waiver there: the waiver ends where the defect does."""
    ours = [one for one in read_waivers(SUITES) if one.requirement == requirement]
    last, first = ([one.covers(requirement, "", "torch", version) for one in ours] for version in MENDED[requirement])
    assert (last, first) == ([True], [False])


def test_a_failure_of_another_version_is_a_failure() -> None:
    """Judged on a version that a waiver is not for, a row fails and passes as if there were no waiver."""
    installed = judged((waiver(versions="<2"), waiver(versions=">2")))
    assert installed.waiver("a/b", "t.py::x[threads]") == waiver(versions=">2")
    assert judged((waiver(versions="<2"),)).waiver("a/b", "t.py::x[threads]") is None


def test_a_waiver_may_be_about_the_backend() -> None:
    """A defect of the backend is waived for every implementation that is judged on it; its version is torch's."""
    of_gloo = waiver(subject="gloo", versions=">=2.0")
    assert judged((of_gloo,)).waiver("a/b", "t.py::x[threads]") == of_gloo
    assert judged((waiver(subject="nccl"),)).waiver("a/b", "t.py::x[threads]") is None


def judged(waivers: tuple[Waiver, ...]) -> LoadedSubject:
    """torch as it is installed, under these waivers."""
    return LoadedSubject(Subject("torch", "gloo"), waivers)


@given(days=st.integers(-1000, 1000))
def test_a_waiver_holds_through_its_last_day(days: int) -> None:
    """On the day that it names a waiver still holds; on the next it has run out."""
    assert waiver(expires=TODAY).expired(TODAY + timedelta(days)) is (days > 0)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_failures_are_waived(verdict: Verdict) -> None:
    """A waiver turns ``fail`` into ``waived`` and ``pass`` into ``stale waiver``, and changes no other verdict."""
    changed = {Verdict.FAIL: Verdict.WAIVED, Verdict.PASS: Verdict.STALE_WAIVER}
    assert waived(verdict, "", waiver(), TODAY)[0] is changed.get(verdict, verdict)
    assert waived(verdict, "as it was", None, TODAY) == (verdict, "as it was")


def test_what_fails_now_and_then_may_pass() -> None:
    """A sporadic waiver is no stale one where the row passes; it waives failures, and says so in records."""
    race = waiver(sporadic=True)
    assert waived(Verdict.PASS, "", race, TODAY) == (Verdict.PASS, "")
    assert waived(Verdict.FAIL, "off", race, TODAY) == (Verdict.WAIVED, "off")
    assert waived(Verdict.FAIL, "off", waiver(sporadic=True, expires=TODAY - timedelta(1)), TODAY)[0] is (
        Verdict.STALE_WAIVER
    )
    assert race.as_json()["sporadic"] == "true"
    assert "sporadic" not in waiver().as_json()


def test_an_expired_waiver_hides_no_failure() -> None:
    """After its last day a failure is a stale waiver, with the failure's own message at hand."""
    verdict, message = waived(Verdict.FAIL, "off by 2", waiver(expires=TODAY - timedelta(1)), TODAY)
    assert verdict is Verdict.STALE_WAIVER
    assert "ran out on 2026-06-14" in message
    assert "off by 2" in message


ROWS = [("a/b", "t.py::x[threads]"), ("a/b", "t.py::x[processes]"), ("c/d", "u.py::y[threads]")]


@pytest.mark.parametrize(
    ("one", "whole", "is_unmatched"),
    [
        (waiver("a/b"), True, False),
        (waiver("a/c"), True, True),
        (waiver("a/c"), False, True),
        (waiver("e/f"), True, True),
        (waiver("e/f"), False, False),
        (waiver(nodeid="t.py::z[threads]"), False, True),
        (waiver(nodeid="v.py::z[threads]"), False, False),
        (waiver(nodeid="v.py::z[threads]"), True, True),
        (waiver("a/c", subject="other"), True, False),
        (waiver("a/b", versions="<2"), True, False),
        (waiver("a/c", versions="<2"), True, True),
    ],
)
def test_a_waiver_that_matches_nothing_is_found(one: Waiver, whole: bool, is_unmatched: bool) -> None:
    """A waiver that matches no row is reported, for any version, unless its chapter or file was not collected."""
    assert (unmatched([one], "torch", ROWS, whole) == [one]) is is_unmatched
