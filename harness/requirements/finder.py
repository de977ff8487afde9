"""Which tests of a suite are which requirements, read from its files without running any of them.

    @requirement("sharding/layout", worlds=("threads",))
    def test_layout(…): …

in ``suites/parameters/test_sharding.py`` becomes
``SuiteTest("sharding/layout", "suites/parameters/test_sharding.py::test_layout", ("threads",))``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.data.kinds import WORLDS


@dataclass(frozen=True)
class SuiteTest:
    """A test as its file has it: ``nodeid`` begins with the suite's folder and has no parameters."""

    requirement: str
    nodeid: str
    worlds: tuple[str, ...]
    level: str = "must"


def suite_tests(folder: Path, file: str = "") -> tuple[SuiteTest, ...]:
    """The requirements of the files ``test_*.py`` below a folder, or of those with one name.

    Raises ValueError if a file cannot be read.
    """
    files = [path for path in sorted(folder.rglob("test_*.py")) if file in ("", path.name)]
    return tuple(test for path in files for test in _tests_of(path, folder))


def without_folder(nodeid: str) -> str:
    """A node id by the name of its file alone: files move to other folders from one version to the next."""
    path, colons, rest = nodeid.partition("::")
    return path.rpartition("/")[2] + colons + rest


def left_out(folder: Path, planned: Collection[str], levels: Collection[str], world: str) -> int:
    """How many requirements of a suite a run leaves out that asked for these levels and this world, or "both"."""
    asked = [test for test in suite_tests(folder) if test.level in levels and world in (*test.worlds, "both")]
    return len({test.requirement for test in asked} - set(planned))


def _tests_of(path: Path, folder: Path) -> Iterator[SuiteTest]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as a suite's file ({error}); name another folder") from error
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            for call in function.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "requirement":
                    values = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "id")]
                    nodeid = f"{folder.name}/{path.relative_to(folder).as_posix()}::{function.name}"
                    yield SuiteTest(_text(values), nodeid, _worlds(call), _level(call))


def _text(values: list[ast.expr]) -> str:
    first = values[0] if values else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _level(call: ast.Call) -> str:
    return _text([word.value for word in call.keywords if word.arg == "level"]) or "must"


def _worlds(call: ast.Call) -> tuple[str, ...]:
    given = next((word.value for word in call.keywords if word.arg == "worlds"), None)
    if not isinstance(given, (ast.Tuple, ast.List)):
        return WORLDS
    return tuple(str(one.value) for one in given.elts if isinstance(one, ast.Constant))
