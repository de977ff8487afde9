"""Which results a run is to try: those that ``--only`` names, and those that were red in the file of ``--failed``."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from harness.records.reader import read_run


def named_requirements(names: str, ids: Collection[str]) -> set[str]:
    """The ids that ``parity,sharding/layout`` names: all of a chapter, or one. Raises ValueError for other names."""
    chapters = {id.partition("/")[0] for id in ids}
    found: set[str] = set()
    for name in (name.strip() for name in names.split(",")):
        if name not in ids and name not in chapters:
            near = get_close_matches(name, sorted({*ids, *chapters}), n=3)
            hint = f"; is it {' or '.join(near)}?" if near else "; docs/requirements.md has all"
            raise ValueError(f"--only {name!r}: expected a chapter or a requirement among these tests{hint}")
        found |= {id for id in ids if name in (id, id.partition("/")[0])}
    return found


def failed_results(record: Path) -> set[str]:
    """The node ids of the red results of a record file. Raises ValueError if it cannot be read, or has none."""
    found = {result.nodeid for result in read_run(record).records if result.verdict.is_red}
    if not found:
        raise ValueError(f"--failed {record}: no result is red there, so there is nothing to run again")
    return found
