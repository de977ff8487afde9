"""Where the results of a record file come from, as digests: which plan, which waiver files, which sources judged.

A run of the test ``t.py::a[threads]``, which is the requirement ``x/a`` at level must, has the plan digest::

    sha256('[["t.py::a[threads]","x/a","must"]]')

The order of tests is not part of it. The same sources have the same digests.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: What judges: the harness, the requirements, and the nets that they are judged on; installed, it has the same digest.
PACKAGES = ("fsdp_conformance", "harness", "reference_models", "suites")
SUFFIXES = (".py", ".toml")
#: Parts that run after the judging, and so cannot change a verdict.
AFTERWARDS = (
    *(f"harness/{part}/" for part in ("commands", "doctor", "report", "reproduce", "submission")),
    "suites/plain_scripts/",
)


@dataclass(frozen=True)
class Provenance:
    """What a run's header says of its plan and its waivers; a waiver file has a ``name`` and a ``sha256``.

    ``left_out`` is how many requirements of the suites are not in the plan, though their levels and worlds are.
    """

    plan_digest: str = ""
    waiver_files: list[dict[str, str]] = field(default_factory=list)
    left_out: int = 0


def plan_digest(tests: Iterable[tuple[str, str, str]]) -> str:
    """The SHA-256 of tests as (node id, requirement id, level), sorted."""
    text = json.dumps(sorted(map(list, tests)), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> dict[str, str]:
    """The name of a file and the SHA-256 of its bytes."""
    return {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def sources_digest() -> str:
    """The SHA-256 of the names and bytes of all sources that judge."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for name, file in sorted(_files(package)):
            digest.update(f"{name}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def suites_folder() -> Path | None:
    """Where the suites are, in a checkout or installed; nothing of them is imported."""
    return next(_folders("suites"), None)


def _folders(package: str) -> Iterator[Path]:
    found = importlib.util.find_spec(package)
    yield from map(Path, (found.submodule_search_locations or ()) if found is not None else ())


def _files(package: str) -> Iterator[tuple[str, Path]]:
    for folder in _folders(package):
        for file in folder.rglob("*"):
            if file.suffix in SUFFIXES and file.is_file():
                name = f"{package}/{file.relative_to(folder).as_posix()}"
                if not name.startswith(AFTERWARDS):
                    yield name, file
