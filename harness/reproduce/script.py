"""A script that shows one failure by itself: the case, the requirement's test, and all that they need, in one file.

# header: what it shows, and how to run it
def what_failed(trial): the test, on the case
def test_…(trial, case): as in the suites
… definitions of suites and harness, a module after the other, as they import each other …
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator

from harness.reproduce.names import names_of
from harness.reproduce.shaken import CannotStandAlone, Shaken, Taken
from harness.reproduce.sources import Meaning, Place, Source, Sources
from harness.reproduce.uses import Use, early, is_test, uses_of

RUNTIME, SUBJECT = "harness.reproduce.runtime", "harness.reproduce.subject"
#: What stands for what is bound to the harness' own way of running ranks.
INSTEAD: dict[Place, Place] = {
    ("harness.trial", "Trial"): (RUNTIME, "Trial"),
    ("harness.trial", "refused"): (RUNTIME, "refused"),
    ("harness.rank", "Rank"): (RUNTIME, "Rank"),
    ("harness.vendor", "Implementation"): (RUNTIME, "Implementation"),
    ("harness.worlds.base", "Program"): (RUNTIME, "Program"),
    ("harness.worlds.attached_fleet", "shared_folder"): (RUNTIME, "shared_folder"),
    (SUBJECT, "IMPLEMENTATION"): ("the_subject", "IMPLEMENTATION"),
    (SUBJECT, "BACKEND"): ("the_subject", "BACKEND"),
}
THIN: tuple[Place, ...] = ((RUNTIME, "Trial"), (RUNTIME, "Rank"), (SUBJECT, "Torch"), ("harness.case", "Case"))
#: What the script begins with, after its header.
TOP = "the_script"


def file_of(sources: Sources, header: str, test: Meaning) -> str:
    """The text of the script whose top is the module ``TOP`` of the sources."""
    shaken = Shaken(sources, [(TOP, "what_failed"), (test.module, test.name), (TOP, "main")], THIN)
    names = names_of(shaken)
    texts = {taken.statement: _text(sources[taken.module], taken, names) for taken in shaken.statements}
    first = [taken for taken in shaken.statements if taken.module == TOP or _is_of(taken, test)]
    parts = [header.rstrip(), *_imports(names), *_joined(texts[taken.statement] for taken in first)]
    for module in _in_order(shaken):
        rest = [taken for taken in shaken.statements if taken.module == module and taken not in first]
        rest.sort(key=lambda taken: taken.statement.lineno)
        parts += _section(sources[module], [texts[taken.statement] for taken in rest])
        parts += [_as_object(shaken, each, names) for each in shaken.whole_modules() if each.module == module]
    parts.append('if __name__ == "__main__":\n    sys.exit(main())')
    return "\n\n\n".join(parts) + "\n"


def _is_of(taken: Taken, test: Meaning) -> bool:
    """Whether it is the test, or a function of its file: these need nothing else to be there before them."""
    return taken.module == test.module and not list(early(taken.statement))


def _in_order(shaken: Shaken) -> list[str]:
    """The modules in the order of first use, ours of the harness last; each after what it needs when it is read."""
    by_statement = {taken.statement: taken for taken in shaken.statements}
    needs: dict[str, dict[str, None]] = {module: {} for module in shaken.modules()}
    for taken in shaken.statements:
        places = {id(use.name) for use in uses_of(early(taken.statement))}
        waiting = [meaning for use, meaning, _ in taken.uses if id(use.name) in places]
        for meaning in waiting:  # what is called now needs what it uses, now
            needs[taken.module][meaning.module] = None
            if meaning.name and not meaning.called:
                statements = shaken.sources[meaning.module].definitions[meaning.name]
                inner = [found for each in statements for _, found, _ in by_statement[each].uses]
                waiting += [found for found in inner if found not in waiting]
    order: dict[str, None] = {}
    for module in sorted(needs, key=lambda module: (module.startswith("harness"), module == RUNTIME)):
        _append(module, needs, order, ())
    return list(order)


def _append(module: str, needs: dict[str, dict[str, None]], order: dict[str, None], users: tuple[str, ...]) -> None:
    for other in needs.get(module, ()):
        if other not in order and other not in (module, *users):
            _append(other, needs, order, (*users, module))
    if module in needs:
        order[module] = None


def _section(source: Source, texts: list[str]) -> list[str]:
    if not texts:
        return []
    words = " ".join((ast.get_docstring(source.tree) or "").partition("\n\n")[0].split())
    title = [f"# ── {source.file} ".ljust(100, "─"), *(f"# {line}" for line in textwrap.wrap(words, 116))]
    [head, *rest] = _joined(texts)
    return ["\n".join([*title, "", head]) if source.file else head, *rest]


def _joined(texts: Iterable[str]) -> list[str]:
    """Texts, of which constants that follow each other are one."""
    found: list[str] = []
    for text in texts:
        if (
            found
            and not re.search("^(def|class|@)", text, re.MULTILINE)
            and not re.search("^(def|class|@)", found[-1], re.MULTILINE)
        ):
            found[-1] += f"\n{text}"
        else:
            found.append(text)
    return found


def _imports(names: dict[Meaning, str]) -> Iterator[str]:
    """The lines that import what is not ours, those of Python itself first."""
    whole, parts = {"import sys"}, dict[str, set[str]]()
    for name, meaning in {name: meaning for meaning, name in names.items() if meaning.called}.items():
        if not meaning.name:
            whole.add(f"import {meaning.module}" + (f" as {name}" if name != meaning.module else ""))
        else:
            word = meaning.name + (f" as {name}" if name != meaning.name else "")
            parts.setdefault(meaning.module, set()).add(word)
    lines = [*sorted(whole), *(_from(module, sorted(words)) for module, words in sorted(parts.items()))]
    of_python = [line for line in lines if re.split(r"[ .]", line)[1] in sys.stdlib_module_names]
    others = [line for line in lines if line not in of_python]
    yield "\n\n".join("\n".join(block) for block in (of_python, others) if block)


def _from(module: str, words: list[str]) -> str:
    line = f"from {module} import {', '.join(words)}"
    return line if len(line) <= 120 else f"from {module} import (\n    {', '.join(words)},\n)"


def _as_object(shaken: Shaken, module: Meaning, names: dict[Meaning, str]) -> str:
    """A module of which a definition is chosen by name."""
    file = shaken.sources[module.module].file
    lines = [f"    {name} = {names[Meaning(module.module, name)]}" for name in shaken.public(module.module)]
    return "\n".join([f"class {names[module]}:", f'    """What is chosen by name of {file}."""', "", *lines])


# One statement, with the names that it has now.


class _Lines:
    """A module's text as bytes, which is what positions of its parts count."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self._lines = self.data.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int = 0) -> int:
        """The place of a column in a line, which are counted from 1."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr) -> tuple[int, int]:
        """Where an expression begins and ends."""
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def block(self, statement: ast.stmt) -> tuple[int, int]:
        """The lines of a statement, with its decorators, and the comments right above it."""
        first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        while first > 1 and self._lines[first - 2].lstrip().startswith(b"#"):
            first -= 1
        return self.at(first), self.at((statement.end_lineno or 0) + 1)

    def gap(self, place: int) -> int:
        """The place of the first line from here that is not empty."""
        line = self._starts.index(place)
        while line < len(self._lines) and not self._lines[line].strip():
            line += 1
        return self._starts[line]


def _text(source: Source, taken: Taken, names: dict[Meaning, str]) -> str:
    lines = _Lines(source.text)
    start, end = lines.block(taken.statement)
    if is_test(taken.statement):
        start = lines.at(taken.statement.lineno)
    edits = {_edit(lines, taken, use, names[meaning], whole) for use, meaning, whole in taken.uses}
    edits |= {(first, lines.gap(last), "") for first, last in map(lines.block, taken.dropped)}
    made, place = b"", start
    for first, last, new in sorted(edits):
        made, place = made + lines.data[place:first] + new.encode(), last
    made += lines.data[place:end]
    return _renamed(taken, made.decode().rstrip(), names)


def _edit(lines: _Lines, taken: Taken, use: Use, new: str, whole: bool) -> tuple[int, int, str]:
    """What is to stand where a name is used now."""
    node = use.attribute if whole and use.attribute is not None else use.name
    start, end = lines.span(node)
    if lines.data[start:end].decode() != ast.unparse(node):  # as in some f-strings before Python 3.12
        if ast.unparse(node) == new:
            return start, start, ""
        raise CannotStandAlone(f"{taken.module}, line {node.lineno}: {ast.unparse(node)} cannot be found to be renamed")
    return start, end, new


def _renamed(taken: Taken, text: str, names: dict[Meaning, str]) -> str:
    """A function or class under the name that it has now."""
    name = getattr(taken.statement, "name", "")
    new = names.get(Meaning(taken.module, name), name)
    return re.sub(rf"^(def|class) {name}\b", rf"\1 {new}", text, count=1, flags=re.MULTILINE) if new != name else text
