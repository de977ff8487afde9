"""Digests of the plan and of the sources are the same wherever plan and sources are."""

from __future__ import annotations

import hashlib

from harness.records import provenance
from harness.records.provenance import PACKAGES, plan_digest, sources_digest


def test_a_plan_digest_is_of_results_in_any_order() -> None:
    """The order of a run is no part of its plan; ids and levels are."""
    rows = [("t.py::a[threads]", "x/a", "must"), ("t.py::b[threads]", "x/b", "must")]
    assert plan_digest(rows) == plan_digest(reversed(rows))
    assert plan_digest(rows[:1]) == hashlib.sha256(b'[["t.py::a[threads]","x/a","must"]]').hexdigest()
    assert plan_digest(rows) != plan_digest([rows[0], ("t.py::b[threads]", "x/b", "should")])


def test_the_sources_of_a_checkout_have_one_digest() -> None:
    """It is the same each time, and no source of what runs after the judging is part of it."""
    assert sources_digest() == sources_digest()
    names = {name for package in PACKAGES for name, _ in provenance._files(package)}
    assert {
        "fsdp_conformance/entry_point.py",
        "harness/trial/trial.py",
        "suites/waivers.toml",
        "suites/kit/tolerance.py",
    } <= names
    assert not any(name.startswith("harness/report/") for name in names)
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
