"""The installed suites' test that a record names: the function, its parametrized forms, and its case, rebuilt.

Its module is imported only after its node id was found in the suites' own files. Then the case classes are known, and
``{"case": "TrainingCase", "world_size": 2, …}`` becomes a ``TrainingCase`` whose fields have their declared types.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from harness.data.case import Case, from_json
from harness.requirements.finder import SuiteTest

Function = Callable[..., Any]


def function_of(test: SuiteTest) -> Function:
    """The test's function, from its module in the installed suites."""
    file, _, name = test.nodeid.partition("::")
    function: Function = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)
    return function


def forms(function: Function) -> list[str]:
    """What pytest calls the forms of a parametrized test, as in ``test_…[threads-FORM]``; one empty name without."""
    marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
    if not marks:
        return [""]
    [mark] = marks
    rows = [row if isinstance(row, (tuple, list)) else (row,) for row in mark.args[1]]
    return ["-".join(str(getattr(value, "__name__", value)) for value in row) for row in rows]


def drawn_arguments(function: Function) -> dict[str, Any]:
    """The arguments that Hypothesis draws for a test, with their declared types."""
    drawn = getattr(function, "hypothesis", None)
    if drawn is None:
        return {}
    hints = get_type_hints(drawn.inner_test)
    return {name: hints[name] for name in inspect.signature(drawn.inner_test).parameters if name != "trial"}


def case_for(function: Function, recorded: Any) -> Case | None:
    """The recorded case, of the class that the test draws; None if the test draws none, or none was recorded.

    Raises ValueError if it is not such a case: another class, a field that is missing or unknown, or of another type.
    """
    wanted: type[Case] | None = drawn_arguments(function).get("case")
    if wanted is None or recorded is None:
        return None
    try:
        case = from_json(recorded)
    except ValueError as error:
        raise ValueError(f"the recorded case does not fit these suites: {error}") from error
    if not isinstance(case, wanted):
        raise ValueError(f"expected a case of class {wanted.__name__}, got one of {type(case).__name__}")
    return case
