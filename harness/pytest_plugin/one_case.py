"""``--case``: one case in place of those that a test would draw."""

from __future__ import annotations

import functools

import pytest

from harness.data.case import Case, from_text
from harness.requirements.marker import requirement_of

CASE = pytest.StashKey[Case]()


def choose(session: pytest.Session) -> None:
    """Before any test runs, know the case that was given. Raises UsageError if it is none, or a test draws none."""
    text = session.config.getoption("--case")
    if text is None:
        return
    try:
        session.config.stash[CASE] = from_text(text)
    except ValueError as error:
        raise pytest.UsageError(f'--case: {error}; take case and test from the "reproduce" of one record') from error
    for item in session.items:
        if requirement_of(item) is not None and not hasattr(getattr(item, "obj", None), "hypothesis"):
            raise pytest.UsageError(f"--case: {item.nodeid} draws no cases; run it without --case")


def put(item: pytest.Item) -> None:
    """Have a test run the case that was given, if one was, and draw none."""
    case = item.config.stash.get(CASE, None)
    if case is not None:
        assert isinstance(item, pytest.Function)
        drawn = item.obj.hypothesis
        item.obj = functools.update_wrapper(functools.partial(drawn.inner_test, case=case), drawn.inner_test)
        item.obj.hypothesis = drawn
