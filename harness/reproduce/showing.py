"""The script of one row: its header, its case, and who is judged, around what ``script.py`` shakes out."""

from __future__ import annotations

import ast
import keyword
import re
import textwrap
from importlib.metadata import entry_points

from harness import __version__
from harness.report.read import Run
from harness.report.text import one_line
from harness.reproduce.choose import Choice
from harness.reproduce.forms import drawn_by, forms_of
from harness.reproduce.literal import Literals
from harness.reproduce.script import INSTEAD, TOP, file_of
from harness.reproduce.shaken import CannotStandAlone
from harness.reproduce.sources import Meaning, Source, Sources

_TORCH = "from harness.reproduce.subject import Torch\n\nIMPLEMENTATION = Torch"
_HERE = "from harness.reproduce.subject import Place, this_machine\n\nBACKEND = "
_BUILT_IN = {
    "torch": _TORCH,
    "gloo": f'{_HERE}Place("cpu", "gloo", "forkserver")',
    "nccl": f'{_HERE}Place("cuda", "nccl")',
    "auto": f"{_HERE}this_machine()",
}
_SHORT = {"reference": "reference_models.subject:implementation"}


def script_of(choice: Choice, run: Run) -> str:
    """The text of the script. Raises ValueError if the row does not allow one, and says why."""
    sources = Sources(INSTEAD)
    source = sources[choice.module]
    call, imports = _call(choice, sources, source)
    lent = {**source.imports, **{name: (choice.module, name) for name in source.definitions}, **imports}
    sources.add(Source(TOP, _top(choice, call), lent=lent))
    named = ((choice.implementation, "implementation"), (choice.backend, "backend"))
    sources.add(Source("the_subject", "\n".join(_subject(*each) for each in named)))
    [test] = source.definitions[choice.function]
    assert isinstance(test, ast.FunctionDef)
    text = file_of(
        sources, _header(choice, run, ast.get_docstring(test) or ""), Meaning(choice.module, choice.function)
    )
    ast.parse(text)
    return text


def _call(choice: Choice, sources: Sources, source: Source) -> tuple[str, dict[str, tuple[str, str]]]:
    """The call of the test, as in its own file, and the imports that it needs besides."""
    arguments = forms_of(source, choice.function)[choice.form]
    drawn = drawn_by(source, choice.function)
    more = sorted(set(drawn) - {"case"})
    if more:
        raise CannotStandAlone(f"its test draws {more[0]!r} besides its case, and records keep cases alone")
    literals = Literals(sources, choice.module)
    if drawn:
        if choice.record.case is None:
            why = "passed" if not choice.record.cause else "ended before there was a case"
            raise CannotStandAlone(f"the row {why}, so no case was recorded; without --script the whole row is run")
        arguments["case"] = literals.case(choice.record.case, drawn["case"], 4)
    lines = [f"    {name} = {text}" for name, text in arguments.items()]
    lines.append(f"    {choice.function}({', '.join(['trial', *(f'{name}={name}' for name in arguments)])})")
    return "\n".join(lines), {name: (found.module, name) for name, found in literals.classes.items()}


def _top(choice: Choice, call: str) -> str:
    return f'''
from harness.reproduce.runtime import Trial, tried

def what_failed(trial: Trial) -> None:
    """The test of {choice.test.requirement}, on the case that was recorded."""
{call}

def main() -> int:
    """Try it: 1 if something differs from what is required, 0 if nothing does."""
    return tried(what_failed)
'''


def _subject(name: str, kind: str) -> str:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    spec = _SHORT.get(name, name)
    if ":" not in spec:
        found = entry_points(group=f"fsdp_conformance.{kind}s")
        spec = next((each.value for each in found if each.name == name), spec)
    module, _, attribute = spec.partition(":")
    words = [*module.split("."), attribute]
    if not all(word.isidentifier() and word.isascii() and not keyword.iskeyword(word) for word in words):
        raise ValueError(f"--{kind} {one_line(name, 80)!r}: expected a name that is known here, or module:attribute")
    return f"from {module} import {attribute} as {kind.upper()}"


def _header(choice: Choice, run: Run, statement: str) -> str:
    """What the file begins with: first what is ours, since an interpreter looks for a coding in the first two lines."""
    size = (choice.record.case or {}).get("world_size")
    ranks = f"--nproc-per-node={size} " if isinstance(size, int) else ""
    needs = [name.partition(":")[0] for name in (choice.implementation, choice.backend) if ":" in name]
    needs += ["reference_models"] if choice.implementation == "reference" else []
    top = [
        f'"""{choice.test.requirement}: {" ".join(statement.split())}',
        "",
        "This file shows one failure by itself. It starts ranks as processes, runs the test of that requirement on one "
        "case, prints what agrees and what differs, and ends with status 1 if anything does:",
        "",
        "    python FILE",
        f"    torchrun {ranks}FILE      (on ranks that are there already)",
        "",
        f"It needs {' and '.join(['torch', *needs])}. Of fsdp-conformance {__version__} it has all that is used here.",
        '"""',
    ]
    record, header = choice.record, run.header
    told = [
        f"Recorded as {record.verdict.value!r} in the {record.world} world, on {header.implementation} and "
        f"{header.backend}, torch {header.environment.get('torch', 'unknown')}, {header.started}:",
        *record.message.splitlines()[:8],
    ]
    lines = [line for words in top for line in (_wrapped(words, "") if words[:1] != " " else [words])]
    lines += ["", *(line for words in told for line in _wrapped(one_line(words, 1000), "# "))]
    return "\n".join([*lines, "", "from __future__ import annotations"])


def _wrapped(words: str, start: str) -> list[str]:
    text = re.sub(r"\s+", " ", words)
    return textwrap.wrap(text, 116, initial_indent=start, subsequent_indent=start, break_on_hyphens=False) or [
        start.rstrip()
    ]
