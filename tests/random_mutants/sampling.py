"""Which random mutants a seed gives: places in random order, and of each place one edit.

All places weigh the same, so a file counts by its size. The first 50 mutants of 100 are those of 50.
"""

from __future__ import annotations

import difflib
import importlib.util
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests import ROOT
from tests.random_mutants.operators import Edit, Site, is_valid, sites

#: The paths that stand for torch's own composable FSDP.
TORCH = "torch"
#: Calls that make a stream or the host wait, in a line that a mutant leaves out.
_WAITS = re.compile(r"^-.*\b(wait|wait_event|wait_stream|synchronize|record_stream|follow|lead)\(", re.MULTILINE)


@dataclass(frozen=True)
class RandomMutant:
    """One edit of one module. ``id`` is ``file:line:operator:number``, with a number among those of that line."""

    id: str
    module: str = ""
    path: Path = Path()
    edit: Edit | None = None

    @property
    def implementation(self) -> str:
        """The subject that it is a mutant of."""
        return "torch" if self.file.startswith("torch/") else "reference"

    @property
    def file(self) -> str:
        """Its file, from the checkout or the folder of installed packages."""
        return self.id.partition(":")[0]

    @property
    def source(self) -> str:
        """The mutated source."""
        assert self.edit is not None
        return self.edit.applied(self.path.read_text(encoding="utf-8"))

    @property
    def diff(self) -> str:
        """The lines that change, without context; "" if none do."""
        if self.edit is None:
            return ""
        before, after = (text.splitlines() for text in (self.path.read_text(encoding="utf-8"), self.source))
        lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[3:]
        return "\n".join(line for line in lines if not line.startswith("@@"))


def unmutated(of: RandomMutant) -> RandomMutant:
    """The subject itself, which no requirement may kill."""
    return RandomMutant("torch/:unmutated" if of.implementation == TORCH else "unmutated")


def sampled(seed: int, count: int, paths: Sequence[str]) -> list[RandomMutant]:
    """The mutants of a seed, ``count`` if there are so many places. Raises ValueError for a wrong path."""
    places = [(*file, site) for path in paths for file in _files(path) for site in _numbered(file[2])]
    chance = random.Random(seed)
    chance.shuffle(places)
    return list(islice(_mutants(places, chance), count))


def waits(paths: Sequence[str]) -> list[RandomMutant]:
    """A mutant without each statement that makes a stream or the host wait. Raises ValueError for a wrong path."""
    dropped = [
        RandomMutant(f"{file}:{edit.line}:{edit.operator}:{number}", module, path, edit)
        for each in paths
        for file, module, path in _files(each)
        for site in _numbered(path)
        for number, edit in site
        if edit.operator == "statement"
    ]
    return [mutant for mutant in dropped if _WAITS.search(mutant.diff)]


def _mutants(
    places: list[tuple[str, str, Path, list[tuple[int, Edit]]]], chance: random.Random
) -> Iterator[RandomMutant]:
    for file, module, path, site in places:
        number, edit = chance.choice(site)
        mutant = RandomMutant(f"{file}:{edit.line}:{edit.operator}:{number}", module, path, edit)
        if mutant.diff and is_valid(mutant.source):  # two equal arguments may have changed places
            yield mutant


def _numbered(path: Path) -> Iterator[list[tuple[int, Edit]]]:
    """The places of a file; edits of one operator in one line are numbered from 1."""
    seen: Counter[tuple[int, str]] = Counter()

    def number(edit: Edit) -> int:
        seen[edit.line, edit.operator] += 1
        return seen[edit.line, edit.operator]

    found: list[Site] = sites(path.read_text(encoding="utf-8"))
    yield from ([(number(edit), edit) for edit in site] for site in found)


def _files(path: str) -> Iterator[tuple[str, str, Path]]:
    """File, dotted name and path of each module that a path names."""
    root, start = ROOT, ROOT / path
    if path == TORCH:
        spec = importlib.util.find_spec("torch.distributed.fsdp._fully_shard")
        assert spec is not None
        assert spec.origin is not None
        start = Path(spec.origin).parent
        root = start.parents[3]
    if not start.exists() or not start.is_relative_to(root):
        raise ValueError(f"expected a Python file or a folder of {ROOT}, or 'torch', got {path!r}")
    for one in sorted(start.rglob("*.py")) if start.is_dir() else [start]:
        parts = one.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield one.relative_to(root).as_posix(), module, one
