"""A pytest plugin for ``harness/submission/plan.py``: writes what was collected, a line of JSON a row."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from harness.requirement import requirement_of
from harness.submission.plan import OUTPUT, PlannedRow


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the rows of the session, if somebody waits for them."""
    if OUTPUT in os.environ:
        rows = [_row(item) for item in session.items if isinstance(item, pytest.Function) and requirement_of(item)]
        text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        Path(os.environ[OUTPUT]).write_text(text, encoding="utf-8")


def _row(item: pytest.Function) -> PlannedRow:
    found = requirement_of(item)
    assert found is not None, "only requirements are asked for"
    return PlannedRow(
        nodeid=item.nodeid,
        requirement=found.id,
        level=found.level,
        world=str(item.callspec.params["world_kind"]),
        statement=" ".join((item.function.__doc__ or "").split()),
        features=tuple(map(str, found.features)),
        limits=found.limits,
        ranks=found.ranks,
        source=found.source,
        draws=hasattr(item.obj, "hypothesis"),
    )
