"""A recorded case as the Python that builds it, from JSON that anybody may have written.

    {"case": "Stack", "dim": 5, "blocks": ["mlp"]}   ─▶   Stack(dim=5, blocks=("mlp",))

A class must be a case of the suites, and its fields those that it has there; all else is written out value by value.
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any

from harness.report.text import one_line
from harness.reproduce.sources import Meaning, Sources

_WIDTH = 112
#: Text that means itself between quotes.
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;+*/()=-]*")


class Literals:
    """Writes cases of the test in ``module``; ``classes`` are those that were needed, by name."""

    def __init__(self, sources: Sources, module: str) -> None:
        self._sources, self._module = sources, module
        self.classes: dict[str, Meaning] = {}

    def case(self, data: Any, base: str, indent: int) -> str:
        """The case, which must be of class ``base`` or of one derived from it."""
        text = self.text(data, indent)
        name = data.get("case") if isinstance(data, dict) else None
        if not isinstance(name, str) or base not in (each.name for each in self._line(self.classes[name])):
            raise ValueError(f"expected a case of class {base}, as that test has them, got {_shown(data)}")
        return text

    def text(self, value: Any, indent: int) -> str:
        """Any value, on one line if it is short."""
        if isinstance(value, dict):
            return self._object(value, indent)
        if isinstance(value, list):
            inner = self._items("(", [""] * len(value), value, ")", indent)
            return inner if len(value) != 1 or inner.endswith(",\n" + " " * indent + ")") else f"{inner[:-1]},)"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float)):
            return repr(value)
        assert isinstance(value, str), value
        return f'"{value}"' if _PLAIN.fullmatch(value) else ascii(value)  # escaped: also what shows as something else

    def _object(self, data: dict[str, Any], indent: int) -> str:
        name = data.get("case")
        found = self._sources.class_named(name, self._module) if isinstance(name, str) and name.isidentifier() else None
        line = self._line(found) if found is not None else []
        if found is None or not any(each == Meaning("harness.case", "Case") for each in line):
            raise ValueError(f"expected a case of the suites, got {_shown(data)}")
        fields = {name: has for each in reversed(line) for name, has in self._fields(each)}
        given = {key: value for key, value in data.items() if key != "case"}
        strange = [key for key in given if key not in fields]
        missing = [key for key, has_default in fields.items() if not has_default and key not in given]
        if strange or missing:
            wrong = f"has no field {one_line(strange[0], 40)!r}" if strange else f"needs a value for {missing[0]!r}"
            raise ValueError(f"the recorded case does not fit these suites: {found.name} {wrong}")
        self.classes[found.name] = found
        return self._items(f"{found.name}(", [f"{key}=" for key in given], list(given.values()), ")", indent)

    def _items(self, start: str, names: list[str], values: list[Any], end: str, indent: int) -> str:
        flat = [name + self.text(value, 0) for name, value in zip(names, values, strict=True)]
        line = f"{start}{', '.join(flat)}{end}"
        if indent + len(line) <= _WIDTH and "\n" not in line:
            return line
        inner = indent + 4
        parts = [f"{' ' * inner}{n}{self.text(v, inner)},\n" for n, v in zip(names, values, strict=True)]
        return f"{start}\n{''.join(parts)}{' ' * indent}{end}"

    def _line(self, meaning: Meaning) -> list[Meaning]:
        """The class and those that it derives from, in our modules."""
        line = [meaning]
        for one in line:
            node = self._class(one)
            for base in node.bases if node is not None else ():
                found = self._sources.meaning(one.module, base.id) if isinstance(base, ast.Name) else None
                line += [found[0]] if found is not None and not found[0].called and found[0] not in line else []
        return line

    def _fields(self, meaning: Meaning) -> list[tuple[str, bool]]:
        """The fields of a dataclass, and whether each has a default."""
        node = self._class(meaning)
        if node is None or not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            return []
        lines = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
        return [(ast.unparse(each.target), each.value is not None) for each in lines]

    def _class(self, meaning: Meaning) -> ast.ClassDef | None:
        source = self._sources.get(meaning.module)
        nodes = source.definitions.get(meaning.name, ()) if source is not None else ()
        return next((node for node in nodes if isinstance(node, ast.ClassDef)), None)


def _shown(data: Any) -> str:
    return f"one of {one_line(repr(data.get('case')), 80)}" if isinstance(data, dict) else one_line(repr(data), 80)
