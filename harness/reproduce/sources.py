"""The texts of suites, harness and nets, read without running any of them, and what a name in one of them means.

In ``suites/test_training_parity.py``, which begins with ``from suites.kit import baseline``, what ``baseline.train``
means takes the attribute in::

    Sources().meaning("suites.test_training_parity", "baseline", "train")
    → Meaning("suites.kit.baseline", "train"), True
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from harness.reproduce.uses import bound_by

#: What a script takes apart. Whatever else is imported, it imports too.
OURS = ("harness", "suites", "reference_models.nets")

#: A name in a module, as ("suites.kit.baseline", "train"); where the name is empty, the module itself.
Place = tuple[str, str]


@dataclass(frozen=True)
class Meaning:
    """What a name stands for: a definition of ours, or a whole module where ``name`` is empty.

    Of what is not ours, ``called`` is the name that it is imported as.
    """

    module: str
    name: str = ""
    called: str = ""


@dataclass
class Source:
    """A module's text, and what its statements bind. ``lent`` are imports that it has not got itself."""

    module: str
    text: str
    file: str = ""
    lent: Mapping[str, Place] = field(default_factory=dict)

    @cached_property
    def tree(self) -> ast.Module:
        """The module, parsed."""
        return ast.parse(self.text)

    @cached_property
    def definitions(self) -> dict[str, list[ast.stmt]]:
        """The statements that bind each name of the top level, in order, but imports."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            if not isinstance(statement, (ast.Import, ast.ImportFrom)):
                for name in bound_by(statement):
                    found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def imports(self) -> dict[str, Place]:
        """What each imported name is."""
        found = dict(self.lent)
        for statement in self.tree.body:
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    top = alias.name.partition(".")[0]
                    found[alias.asname or top] = (alias.name if alias.asname else top, "")
            elif isinstance(statement, ast.ImportFrom):
                assert statement.module, f"{self.module}: a relative import"
                found |= {alias.asname or alias.name: (statement.module, alias.name) for alias in statement.names}
        return found


class Sources:
    """Modules of ours by name, read when they are asked for; ``instead`` has what stands for something else."""

    def __init__(self, instead: Mapping[Place, Place] | None = None) -> None:
        self._instead = instead or {}
        self._read: dict[str, Source | None] = {}

    def add(self, source: Source) -> None:
        """A module that is in no file."""
        self._read[source.module] = source

    def __getitem__(self, module: str) -> Source:
        source = self.get(module)
        assert source is not None, module
        return source

    def get(self, module: str) -> Source | None:
        """A module of ours; None if there is no such file, or if it is not ours to take apart."""
        if module not in self._read:
            self._read[module] = _source(module)
        return self._read[module]

    def meaning(self, module: str, name: str, attribute: str = "") -> tuple[Meaning, bool] | None:
        """What ``name``, or ``name.attribute``, means in a module, and whether that takes the attribute in.

        None for what the module does not bind, as names of Python itself.
        """
        module, name = self._instead.get((module, name), (module, name))
        source = self[module]
        if name in source.definitions:
            return Meaning(module, name), False
        if name not in source.imports:
            return None
        start, wanted = self._instead.get(source.imports[name], source.imports[name])
        if wanted and self.get(start) is not None and self.get(f"{start}.{wanted}") is None:
            return self.meaning(start, wanted, attribute)
        whole = f"{start}.{wanted}" if wanted else start
        if self.get(whole) is None:
            return Meaning(start, wanted, called=name), False
        inner = self.meaning(whole, attribute) if attribute else None
        return (inner[0], True) if inner is not None else (Meaning(whole), False)

    def class_named(self, name: str, module: str) -> Meaning | None:
        """The class of this name that a module of the suites defines, or one that it imports from, and so on."""
        waiting = [module]
        for one in waiting:
            source = self.get(one)
            if source is not None and any(isinstance(each, ast.ClassDef) for each in source.definitions.get(name, ())):
                return Meaning(one, name)
            places = source.imports.values() if source is not None else ()
            named = [near for start, inner in places for near in (start, f"{start}.{inner}")]
            waiting += [near for near in dict.fromkeys(named) if near.startswith("suites.") and near not in waiting]
        return None


@cache
def _source(module: str) -> Source | None:
    """Read and parsed once, for all scripts."""
    path = _file_of(module)
    return Source(module, path.read_text(encoding="utf-8"), _shown(module, path)) if path is not None else None


def _file_of(module: str) -> Path | None:
    top, *rest = module.split(".")
    if not any(f"{module}.".startswith(f"{ours}.") for ours in (*OURS, "reference_models")):
        return None
    if top == "reference_models" and rest and rest[0] != "nets":
        return None
    found = importlib.util.find_spec(top)  # of a top level alone: more would import what is above it
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        inner = Path(folder, *rest)
        for path in (inner.with_suffix(".py"), inner / "__init__.py"):
            if path.is_file():
                return path
    return None


def _shown(module: str, path: Path) -> str:
    """The file as a person of the project names it."""
    folders = module.count(".") + (path.stem == "__init__")
    return "/".join(path.parts[-1 - folders :])
