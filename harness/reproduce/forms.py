"""Which arguments a test of the suites takes in one of its forms, read from its file.

    @pytest.mark.parametrize(("program", "error"), [(programs.room_for_none, "ValueError"), …])

makes of ``test_…[threads-room_for_none-ValueError]`` the arguments ``program=programs.room_for_none`` and
``error="ValueError"``, as they are written in that file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.reproduce.sources import Source


def forms_of(source: Source, test: str) -> dict[str, dict[str, str]]:
    """The forms of a test by what pytest calls them, each with its arguments; one without a name if it has but one."""
    [function] = source.definitions[test]
    assert isinstance(function, ast.FunctionDef)
    marks = [each for each in function.decorator_list if ast.unparse(each).startswith("pytest.mark.parametrize")]
    if not marks:
        return {"": {}}
    [mark] = marks
    assert isinstance(mark, ast.Call)
    names = _names(mark.args[0])
    return {
        "-".join(map(_called, row)): dict(zip(names, map(ast.unparse, row), strict=True)) for row in _rows(source, mark)
    }


def drawn_by(source: Source, test: str) -> dict[str, str]:
    """The arguments that Hypothesis draws for a test, and of which class each is said to be."""
    [function] = source.definitions[test]
    assert isinstance(function, ast.FunctionDef)
    if not any(ast.unparse(each).startswith("given(") for each in function.decorator_list):
        return {}
    return {
        each.arg: ast.unparse(each.annotation or ast.Name("Any")) for each in function.args.args if each.arg != "trial"
    }


def _names(given: ast.expr) -> list[str]:
    if isinstance(given, (ast.Tuple, ast.List)):
        return [str(each.value) for each in given.elts if isinstance(each, ast.Constant)]
    assert isinstance(given, ast.Constant)
    return [name.strip() for name in str(given.value).split(",")]


def _rows(source: Source, mark: ast.Call) -> Iterator[list[ast.expr]]:
    rows = mark.args[1]
    if isinstance(rows, ast.Name):  # a constant of the file
        [statement] = source.definitions[rows.id]
        assert isinstance(statement, (ast.Assign, ast.AnnAssign))
        assert statement.value is not None
        rows = statement.value
    assert isinstance(rows, ast.List)
    many = len(_names(mark.args[0])) > 1
    for row in rows.elts:
        yield row.elts if many and isinstance(row, ast.Tuple) else [row]


def _called(value: ast.expr) -> str:
    """What pytest calls a value: a text itself, a function by its name."""
    if isinstance(value, ast.Attribute):
        return value.attr
    return str(value.value) if isinstance(value, ast.Constant) else ast.unparse(value)
