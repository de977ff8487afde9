"""Which names of its module a definition uses, and which names it has of its own.

    def mean(values):
        total = sum(values)
        return baseline.rounded(total / len(values))

uses ``sum``, ``len`` and ``baseline.rounded`` of the module or of Python; ``values`` and ``total`` are its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_NEW_SCOPES = (*_FUNCTIONS, ast.ClassDef)

#: Decorators that make a test of a function.
_OF_TESTS = ("requirement", "pytest", "given", "example")


@dataclass(frozen=True)
class Use:
    """A name of the module as it is used: ``baseline``, or with what is taken of it, ``baseline.train``."""

    name: ast.Name
    attribute: ast.Attribute | None = None


def uses_of(nodes: Iterable[ast.AST]) -> list[Use]:
    """What nodes of a module's top level, or of the body of a class there, use of the module, its own names too."""
    return [use for node in nodes for use in _uses(node)]


@cache
def _uses(node: ast.AST) -> tuple[Use, ...]:
    walk = _Walk()
    walk.visit(node)
    return tuple(walk.found)


@cache
def own_names(node: ast.AST) -> frozenset[str]:
    """Every name that is bound anywhere inside a node, but not by itself at the top level."""
    names: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, _FUNCTIONS):
            names |= _bound_in_function(inner)
        elif isinstance(inner, _COMPREHENSIONS):
            names |= set(_stored([each.target for each in inner.generators]))
        elif isinstance(inner, ast.ClassDef):
            names |= set(_bound(inner.body))
    return frozenset(names)


@cache
def words_in(node: ast.AST) -> frozenset[str]:
    """The attributes and texts that a node mentions: by these, members of a class may be asked for."""
    attributes = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return frozenset(attributes | {text for text in texts if isinstance(text, str)})


def bound_by(statement: ast.stmt) -> list[str]:
    """The names that a statement of the top level binds."""
    return list(dict.fromkeys(_bound([statement])))


def early(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that are worked out when it is reached; what is in functions comes later, if ever."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        decorators = node.decorator_list if not is_test(node) else []
        yield from (*decorators, *node.args.defaults, *(each for each in node.args.kw_defaults if each is not None))
    elif isinstance(node, ast.ClassDef):
        yield from (*node.decorator_list, *node.bases, *node.keywords)
        for member in node.body:
            yield from early(member)
    elif isinstance(node, ast.AnnAssign):  # annotations are not looked at
        yield from (node.target, *([node.value] if node.value is not None else []))
    else:
        yield node


def is_test(statement: ast.stmt) -> bool:
    """Whether a function is a test of the suites, by its decorators, which a script has no use for."""
    if not isinstance(statement, ast.FunctionDef):
        return False
    return any(ast.unparse(each).startswith(_OF_TESTS) for each in statement.decorator_list)


class _Walk(ast.NodeVisitor):
    """Goes through a definition with the names of the scopes that it is in, the innermost last."""

    def __init__(self) -> None:
        self.found: list[Use] = []
        self._scopes: tuple[set[str], ...] = ()
        self._class: set[str] = set()  # names of a class's body are seen in it, and not in its methods

    def visit_Name(self, node: ast.Name) -> None:
        if not self._is_own(node):
            self.found.append(Use(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.value, ast.Name):
            self.visit(node.value)
        elif not self._is_own(node.value):
            self.found.append(Use(node.value, node))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outer in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(outer)
        before, self._class = self._class, set(_bound(node.body))
        self._all(node.body)
        self._class = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._all(node.decorator_list)
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._all(node.decorator_list)
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehension(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehension(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehension(node)

    def _function(self, node: _Function) -> None:
        arguments = node.args
        self._all([*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)])
        self._all([each.annotation for each in _arguments(arguments) if each.annotation is not None])
        if not isinstance(node, ast.Lambda) and node.returns is not None:
            self.visit(node.returns)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._within(_bound_in_function(node), body)

    def _comprehension(self, node: _Comprehension) -> None:
        self.visit(node.generators[0].iter)
        inner = [each for part in node.generators for each in (part.target, *part.ifs)]
        inner += [part.iter for part in node.generators[1:]]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        targets = set(_stored([part.target for part in node.generators]))
        before, self._scopes = self._scopes, (*self._scopes, targets)
        self._all([*inner, *results])
        self._scopes = before

    def _within(self, names: set[str], body: Iterable[ast.AST]) -> None:
        before, own_class = self._scopes, self._class
        self._scopes, self._class = (*before, names), set()
        self._all(body)
        self._scopes, self._class = before, own_class

    def _all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _is_own(self, node: ast.Name) -> bool:
        return node.id in self._class or any(node.id in scope for scope in self._scopes)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *starred]


def _bound_in_function(node: _Function) -> set[str]:
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    return {each.arg for each in _arguments(node.args)} | set(_bound(body))


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that a body binds, without those of functions, classes and comprehensions in it."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, _COMPREHENSIONS):
            yield from (each.target.id for each in ast.walk(node) if isinstance(each, ast.NamedExpr))
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.ExceptHandler) and node.name:
                yield node.name
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                yield node.id
            if isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                yield node.name
            yield from _bound(ast.iter_child_nodes(node))


def _stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        yield from (
            each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
