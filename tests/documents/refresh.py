"""The command that writes what documents say of the suites as they stand: the table of requirements, and counts.

python -m tests.documents.refresh
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from suites.catalogue import entries, requirements
from tests import ROOT as ROOT
from tests.mutants import all_mutants

README = ROOT / "README.md"
TABLE = ROOT / "docs" / "requirements.md"
VENDORS = ROOT / "docs" / "vendors.md"


def areas() -> Counter[str]:
    """How many requirements each area has."""
    return Counter(entry.module.split(".")[1] for entry in entries())


def counts() -> Iterator[tuple[Path, str, tuple[int, ...]]]:
    """Words that stand once in a document, with ``#`` for each number: ``(README, "[all # mutants]", (680,))``."""
    yield README, "# requirements answer", (len(entries()),)
    for area, number in areas().items():
        yield README, f" {area} #", (number,)
    yield README, "[all # mutants]", (len(all_mutants()),)
    asked = [entry.requirement for entry in entries()]
    yield VENDORS, "its # requirements on one device", (sum("threads" in found.worlds for found in asked),)
    fewest = [found.ranks for found in asked if "processes" in found.worlds]
    for ranks, words in ((1, "1"), (2, "2"), (4, "4 or more")):
        yield VENDORS, f"| {words} | # of # |", (sum(few <= ranks for few in fewest), len(fewest))


def refreshed() -> dict[Path, str]:
    """The documents with what is true now. Raises ValueError where a count has no place."""
    found = {TABLE: "".join(f"{line}\n" for line in requirements())}
    for path, words, numbers in counts():
        text = found.get(path) or path.read_text("utf-8")
        pattern = r"\d+".join(map(re.escape, words.split("#")))
        if (times := len(re.findall(pattern, text))) != 1:
            raise ValueError(f"expected {path} to say {words!r} (# for a number) once, got {times}: write it there")
        found[path] = re.sub(pattern, words.replace("#", "{}").format(*numbers), text)
    return found


def main() -> None:
    """Write them."""
    for path, text in refreshed().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
