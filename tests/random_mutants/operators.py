"""Where a source can be mutated and how: each place with its edits.

    sites("def f(a):\n    return a < 1\n")   [[Edit("compare", 2, …, "<="), Edit("compare", 2, …, ">=")],
                                              [Edit("constant", 2, …, "2"), Edit("constant", 2, …, "0")]]

Left alone: docstrings, annotations, text, assertions, log messages, errors that are raised, and what is for type
checkers only.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

OPERATORS = ("compare", "arithmetic", "boolean", "constant", "branch", "statement", "argument", "decorator")
#: What each token becomes.
_TOKENS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("+", "//")),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*", "%")),
    ast.Mod: ("%", ("//",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
}
_UNARY: dict[type[ast.AST], tuple[str, str]] = {ast.Not: ("boolean", "not"), ast.USub: ("arithmetic", "-")}
_LOGS = ("logger", "logging", "log", "warnings")
#: Built-in functions whose arguments cannot change places, and an argument that only checks.
_FIXED = ("isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast")
_CHECKS = "strict"
Site = list["Edit"]


@dataclass(frozen=True)
class Edit:
    """One change: the bytes from ``start`` to ``end`` of the source, from ``line`` on, become ``text``."""

    operator: str
    line: int
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The source after the change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


def sites(source: str) -> list[Site]:
    """Every place where the source can be mutated, in order, with its edits; few of them are not ``is_valid``."""
    tree = _Stripped().visit(ast.parse(source))
    text, found = _Text(source), []
    droppable = {id(statement) for statement in _droppable(tree)}
    for node in ast.walk(tree):
        found += list(_expressions(text, node))
        found += [[text.edit("statement", node, "pass")]] if id(node) in droppable else []
    return sorted(filter(None, found), key=lambda site: (site[0].start, site[0].end, site[0].operator))


def is_valid(source: str) -> bool:
    """Whether it is Python."""
    try:
        compile(source, "", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Stripped(ast.NodeTransformer):
    """The tree without what is not mutated; what is left keeps its place in the source."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant("")
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_log = isinstance(node.value, ast.Call) and ast.unparse(node.value.func).partition(".")[0] in _LOGS
        return None if is_log or isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.copy_location(ast.Constant(""), node)

    def visit_Raise(self, node: ast.Raise) -> None:
        return None

    def visit_Assert(self, node: ast.Assert) -> None:
        return None


class _Text:
    """A source by the places of its nodes."""

    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: Any) -> int:
        return int(self._starts[node.lineno - 1] + node.col_offset)

    def end(self, node: Any) -> int:
        return int(self._starts[node.end_lineno - 1] + node.end_col_offset)

    def of(self, start: int, end: int) -> str:
        return self._data[start:end].decode()

    def edit(self, operator: str, node: Any, text: str) -> Edit:
        """In place of a whole node."""
        return Edit(operator, node.lineno, self.start(node), self.end(node), text)

    def swaps(self, operator: str, left: Any, right: Any, token: type[ast.AST]) -> Site:
        """Another token between two nodes."""
        old, others = _TOKENS.get(token, ("", ()))
        start, end = self.end(left), self.start(right)
        between = self.of(start, end)
        return [Edit(operator, left.end_lineno, start, end, between.replace(old, new, 1)) for new in others]


def _expressions(text: _Text, node: ast.AST) -> Iterator[Site]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for (one, other), op in zip(pairwise([left, *others]), ops, strict=True):
                yield text.swaps("compare", one, other, type(op))
        case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
            yield text.swaps("arithmetic", left, right, type(node.op))
        case ast.BoolOp(values=values):
            for one, other in pairwise(values):
                yield text.swaps("boolean", one, other, type(node.op))
        case ast.UnaryOp() if type(node.op) in _UNARY:
            operator, token = _UNARY[type(node.op)]
            start = text.start(node)
            yield [Edit(operator, node.lineno, start, start + len(token), "")]
        case ast.Constant():
            yield [text.edit("constant", node, repr(value)) for value in _other_values(node.value)]
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield list(_branch(text, test, fixed=(False,) if isinstance(node, ast.While) else (True, False)))
        case ast.comprehension(ifs=tests):
            yield from (list(_branch(text, test, fixed=(True, False))) for test in tests)
        case ast.Call():
            yield from _call(text, node)
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            for one in decorators:
                if not ast.unparse(one).endswith("overload"):
                    yield [Edit("decorator", one.lineno, text.start(one) - 1, text.end(one), "")]


def _other_values(value: object) -> tuple[object, ...]:
    """What a constant becomes; text stays."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, (int, float)):
        return (value + 1, value - 1)
    return (True,) if value is None else ()


def _branch(text: _Text, test: Any, fixed: tuple[bool, ...]) -> Iterator[Edit]:
    """The condition negated, unless its own operator already does that, and fixed."""
    if isinstance(test, ast.Constant):
        return
    is_single = (isinstance(test, ast.Compare) and len(test.ops) == 1) or isinstance(test, ast.UnaryOp)
    words = text.of(text.start(test), text.end(test))
    yield from (text.edit("branch", test, str(value)) for value in fixed)
    if not is_single:
        yield text.edit("branch", test, f"not ({words})")


def _call(text: _Text, call: ast.Call) -> Iterator[Site]:
    """Each named argument and the last of several others dropped; neighbours swapped."""
    if ast.unparse(call.func) in _FIXED:
        return
    everything: list[Any] = sorted([*call.args, *call.keywords], key=text.start)
    for place, one in enumerate(everything):
        is_last = one in call.args[1:] and one is call.args[-1]
        if is_last or (isinstance(one, ast.keyword) and one.arg not in (None, _CHECKS)):
            yield [_dropped(text, everything, place)]
    for one, other in pairwise(call.args):
        if not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
            start, middle, rest, end = text.start(one), text.end(one), text.start(other), text.end(other)
            words = text.of(rest, end) + text.of(middle, rest) + text.of(start, middle)
            yield [Edit("argument", one.lineno, start, end, words)]


def _dropped(text: _Text, arguments: list[Any], place: int) -> Edit:
    one = arguments[place]
    start, end = text.start(one), text.end(one)
    if place:
        start = text.end(arguments[place - 1])
    elif len(arguments) > 1:
        end = text.start(arguments[1])
    return Edit("argument", one.lineno, start, end, "")


def _droppable(tree: ast.AST) -> Iterator[ast.AST]:
    """Calls, and assignments other than to a variable that this alone assigns: without it all would be a crash."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        inside = list(ast.walk(function))
        names = Counter(node.arg for node in inside if isinstance(node, ast.arg))
        names.update(node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        for node in inside:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            is_needed = any(isinstance(one, ast.Name) and names[one.id] < 2 for one in targets)
            is_assignment = isinstance(node, (ast.Assign, ast.AugAssign)) or _has_value(node)
            if isinstance(node, ast.Expr) or (is_assignment and not is_needed):
                yield node


def _has_value(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is not None
