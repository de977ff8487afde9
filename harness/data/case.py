"""A case: what is asked of a subject, as frozen data that prints, travels and replays.

Hypothesis draws cases in the controller; ranks receive them. A case is a frozen dataclass whose fields are JSON
types (str, int, finite float, bool, None), tuples of them, or further frozen dataclasses derived from ``Case``.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from harness.data.text import one_line
from harness.data.type_checks import MOST_DEEP, is_deep, misfit

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Case:
    """The base of every case. Subclasses that are tried on ranks have a ``world_size``."""

    def as_json(self) -> dict[str, Any]:
        """The case as a JSON object; ``"case"`` names its class."""
        return {"case": type(self).__name__, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}

    def fitted(self) -> Self:
        """The case, changed as little as can be to ask for nothing that is not claimed; a class says how."""
        parts = {f.name: part.fitted() for f in fields(self) if isinstance(part := getattr(self, f.name), Case)}
        changed = {name: part for name, part in parts.items() if part is not getattr(self, name)}
        return replace(self, **changed) if changed else self


def _plain(value: Any) -> Any:
    if isinstance(value, Case):
        return value.as_json()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def from_text(text: str) -> Case:
    """Rebuild a case from JSON text. Raises ValueError that says in one line what is wrong."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(one_line(f"expected a case as JSON, got {text!r:.80} ({error})")) from error
    try:
        return from_json(data)
    except ValueError as error:
        raise ValueError(one_line(str(error), 4000)) from error  # it lists the classes that are known


def from_json(data: Any) -> Case:
    """Rebuild a case from ``as_json``'s object. Raises ValueError that names what does not fit; runs no code of it."""
    if is_deep(data):
        raise ValueError(f"expected a case, got JSON that is nested more than {MOST_DEEP} deep")
    case = _rebuilt(data)
    if not isinstance(case, Case):
        raise ValueError(f'expected a JSON object with a "case" key naming the case class, got {data!r:.80}')
    return case


def _rebuilt(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_rebuilt(item) for item in data)
    if not isinstance(data, dict):
        return data
    classes = _known_cases()
    name = data.get("case")
    if not isinstance(name, str) or name not in classes:
        raise ValueError(f"unknown case class {name!r:.80}; known here: {', '.join(sorted(classes)) or 'none'}")
    values = {key: _rebuilt(value) for key, value in data.items() if key != "case"}
    try:
        case = classes[name](**values)
    except TypeError as error:
        raise ValueError(f"cannot build {name} from {sorted(values)}: {error}") from error
    wrong = misfit(case)
    if wrong:
        declared = next(field.type for field in fields(case) if field.name == wrong)
        kind = declared if isinstance(declared, str) else inspect.formatannotation(declared)
        raise ValueError(f'"{wrong}" of {name} must be {kind}, got {getattr(case, wrong)!r:.80}')
    return case


def _known_cases() -> dict[str, type[Case]]:
    found: dict[str, type[Case]] = {}
    waiting = list(Case.__subclasses__())
    while waiting:
        cls = waiting.pop()
        found[cls.__name__] = cls
        waiting.extend(cls.__subclasses__())
    return found


def cell_of(case: Any) -> str:
    """What a case was about, in a few words, e.g. ``4 ranks · float32 · mesh 2x2``; the last two where it says so."""
    words = [f"{case.world_size} ranks"]
    dtype, mesh, tp = (getattr(case, name, None) for name in ("dtype", "mesh", "tp"))
    words += [str(dtype)] if dtype else []
    axes = mesh if isinstance(mesh, tuple) and all(isinstance(size, int) for size in mesh) else ()
    if isinstance(tp, int) and tp > 1:
        axes = (*(axes or (case.world_size // tp,)), tp)
    return " · ".join([*words, *([f"mesh {'x'.join(map(str, axes))}"] if len(axes) > 1 else [])])


def key_of(case: Any) -> str:
    """The same text for equal cases."""
    return json.dumps(case.as_json(), sort_keys=True) if isinstance(case, Case) else repr(case)
