"""Shaking the tree: of all our modules, the definitions that a few functions need, and no others.

From ``test_training_…`` in ``suites/test_training_parity.py``, by what it uses, and what that uses::

    test_training_…  ─▶  follows_the_baseline  ─▶  baseline.train, tolerance.parity, programs.train  ─▶  TrainingCase …

A test loses its decorators: those say when it is run, and on what. Of a class that is ``thin``, as the ``Rank`` that
has more methods than one script needs, those methods are left out whose names nobody mentions.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from harness.reproduce.sources import Meaning, Place, Sources
from harness.reproduce.uses import Use, is_test, uses_of, words_in


class CannotStandAlone(ValueError):
    """What is needed cannot be put into a script; says why."""


@dataclass
class Taken:
    """A statement of a module, the parts of it that are kept, and what they use."""

    module: str
    statement: ast.stmt
    parts: list[ast.AST]
    dropped: list[ast.stmt]
    uses: list[tuple[Use, Meaning, bool]] = field(default_factory=list)


class Shaken:
    """What was taken: ``statements`` of our modules, and ``meanings`` of all that they use, as they were first used."""

    def __init__(self, sources: Sources, roots: Collection[Place], thin: Collection[Place] = ()) -> None:
        self.sources, self.roots = sources, [Meaning(*root) for root in roots]
        self.statements: list[Taken] = []
        self.meanings: dict[Meaning, None] = {}
        self._thin, self._words = thin, set[str]()
        self._by_statement: dict[ast.stmt, Taken] = {}
        for root in self.roots:
            self._take(root)
        while self._thicker():
            pass

    def modules(self) -> list[str]:
        """The modules of ours that something was taken of."""
        return list(dict.fromkeys(taken.module for taken in self.statements))

    def whole_modules(self) -> Iterator[Meaning]:
        """The modules of ours that are used as objects."""
        return (meaning for meaning in self.meanings if not meaning.name and not meaning.called)

    def public(self, module: str) -> list[str]:
        """The functions and classes that such a module offers."""
        found = self.sources[module].definitions.items()
        return [name for name, [first, *_] in found if _is_named(first) and not name.startswith("_")]

    def _take(self, meaning: Meaning) -> None:
        waiting = [meaning]
        while waiting:
            one = waiting.pop(0)
            if one in self.meanings:
                continue
            self.meanings[one] = None
            if one.called:
                _refuse_test_tools(one)
            elif one.name:
                for statement in self.sources[one.module].definitions[one.name]:
                    waiting += self._include(one.module, statement)
            else:
                waiting += [Meaning(one.module, name) for name in self.public(one.module)]

    def _include(self, module: str, statement: ast.stmt) -> list[Meaning]:
        if statement in self._by_statement:
            return []
        dropped: list[ast.stmt] = []
        if isinstance(statement, ast.ClassDef) and (module, statement.name) in self._thin:
            dropped = [member for member in statement.body if _may_go(member)]
        taken = Taken(module, statement, list(_parts(statement, dropped)), dropped)
        self._by_statement[statement] = taken
        self.statements.append(taken)
        return self._used(taken, taken.parts)

    def _used(self, taken: Taken, parts: list[ast.AST]) -> list[Meaning]:
        self._words |= {word for part in parts for word in words_in(part)}
        for use in uses_of(parts):
            attribute = use.attribute.attr if use.attribute is not None else ""
            found = self.sources.meaning(taken.module, use.name.id, attribute)
            if found is not None:
                taken.uses.append((use, *found))
        return [meaning for _, meaning, _ in taken.uses]

    def _thicker(self) -> bool:
        """Take the members of thin classes that have been mentioned by now; whether there were any."""
        for taken in self.statements:
            for member in taken.dropped:
                if _name_of(member) in self._words:
                    taken.dropped.remove(member)
                    taken.parts.append(member)
                    for meaning in self._used(taken, [member]):
                        self._take(meaning)
                    return True
        return False


def _parts(statement: ast.stmt, dropped: list[ast.stmt]) -> Iterator[ast.AST]:
    """The parts of a statement whose names count."""
    if isinstance(statement, ast.FunctionDef) and is_test(statement):
        yield ast.FunctionDef(statement.name, statement.args, statement.body, [], statement.returns)
    elif dropped and isinstance(statement, ast.ClassDef):
        yield from (*statement.decorator_list, *statement.bases)
        yield from (member for member in statement.body if member not in dropped)
    else:
        yield statement


def _may_go(member: ast.stmt) -> bool:
    """Whether a class is whole without this member: a method that others call, or a plain attribute."""
    return isinstance(member, (ast.FunctionDef, ast.Assign)) and not _name_of(member).startswith("_")


def _name_of(member: ast.stmt) -> str:
    if isinstance(member, ast.FunctionDef):
        return member.name
    target = member.targets[0] if isinstance(member, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else ""


def _is_named(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.FunctionDef, ast.ClassDef))


def _refuse_test_tools(meaning: Meaning) -> None:
    tool = meaning.module.partition(".")[0]
    if tool in ("hypothesis", "pytest"):
        raise CannotStandAlone(f"it uses {tool} while it runs ({meaning.module}.{meaning.name}), not only to be drawn")
