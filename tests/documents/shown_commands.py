"""Commands that documents and examples show, as words: of a page, a workflow, or a script.

    fsdp-conformance run --backend nccl \\
        -o reports    # status 1 if a row is red            ─▶   ["fsdp-conformance", "run", "--backend", "nccl", …]
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from harness.attached import pytest_arguments
from harness.commands import COMMANDS
from tests import ROOT as ROOT

PROGRAMS = ("fsdp-conformance", "pytest", "torchrun", "python")
#: What may stand before one of them, beside options and variables. A session begins a line with a dollar.
LAUNCHERS = ("$", "srun", "nice")
#: Some of its options have values in words of their own, so that only a program of ours says where they end.
_MPIEXEC = "mpiexec"
#: What ends the words of one command.
_ENDS = re.compile(r"[();<>|&]+")
_CONTINUED = re.compile(r"\\\n\s*")
#: A block of a page: its language, which is none where a session is shown, and its text.
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
#: A step of a workflow: its lines as they are after ``|``, as one after ``>``, or beside the key.
_STEP = re.compile(r"^( *)(?:- )?run: (?:(?P<kind>[|>])-?\n(?P<lines>(?:\1 +.*\n)+)|(?P<line>.*)\n)", re.MULTILINE)


def shell_of(path: Path) -> Iterator[str]:
    """The shell text in a page, a workflow or a script."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from (block for language, block in _BLOCK.findall(text) if language in ("", "sh"))
    elif path.suffix == ".yml":
        for step in _STEP.finditer(text):
            lines = [line.strip() for line in (step["lines"] or step["line"]).splitlines()]
            yield (" " if step["kind"] == ">" else "\n").join(lines)
    else:
        yield text


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of ours in a piece of shell, from the program on."""
    for line in _CONTINUED.sub(" ", text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        yield from _ours(list(lexer))


def _ours(words: Sequence[str]) -> Iterator[list[str]]:
    """Of the commands of a line, those that run one of our programs, whatever launches it."""
    one: list[str] = []
    for word in (*words, ";"):
        if not _ENDS.fullmatch(word):
            one.append(word)
            continue
        found = list(itertools.dropwhile(lambda each: each in LAUNCHERS or each[:1] == "-" or "=" in each, one))
        if found[:1] == [_MPIEXEC]:
            found = list(itertools.dropwhile(lambda each: each not in PROGRAMS, found))
        if found and found[0] in PROGRAMS:
            yield found
        one = []


class Misspelt(ValueError):
    """What is shown is refused by the parser that it is for."""


def parse(words: Sequence[str], pytests: pytest.Parser) -> None:
    """Have a command parsed by its own parser, and by others what it hands on. Raises ``Misspelt``."""
    program, *rest = words
    parsers = dict(zip(PROGRAMS, (_parse_ours, _parse_pytest, _parse_torchrun, _parse_python), strict=True))
    try:
        parsers[program](rest, pytests)
    except (SystemExit, ValueError, pytest.UsageError) as refused:
        raise Misspelt(f"{shlex.join(words)}: {refused}") from refused


def _parse_ours(words: Sequence[str], pytests: pytest.Parser) -> None:
    name, *rest = words
    if name in ("--help", "--version"):
        return None
    if name not in COMMANDS:
        raise Misspelt(f"fsdp-conformance has no {name!r}")
    if name == "attached":
        return _parse_pytest(pytest_arguments(rest), pytests)
    _, left = importlib.import_module(COMMANDS[name][0])._parser().parse_known_args(rest)
    if name == "run":
        return _parse_pytest(left, pytests)
    if left:
        raise Misspelt(f"fsdp-conformance {name} takes no {left}")
    return None


def _parse_pytest(words: Sequence[str], pytests: pytest.Parser) -> None:
    options, left = pytests.parse_known_and_unknown_args(list(words))
    files = [name.partition("::")[0] for name in options.file_or_dir]
    there = importlib.util.find_spec if options.pyargs else lambda name: (ROOT / name).exists()
    strange = [*left, *(name for name in files if name.startswith("suites") and not there(name))]
    if strange and "…" not in "".join(strange) and "suites/test_x.py" not in strange:
        raise Misspelt(f"pytest takes no {strange}")


def _parse_torchrun(words: Sequence[str], pytests: pytest.Parser) -> None:
    options = get_args_parser().parse_args(list(words))
    if not options.module:
        raise Misspelt("torchrun starts a module of ours: -m fsdp_conformance attached")
    _parse_module(options.training_script, options.training_script_args, pytests)


def _parse_python(words: Sequence[str], pytests: pytest.Parser) -> None:
    if words[:1] == ["-m"]:
        _parse_module(words[1], words[2:], pytests)


def _parse_module(name: str, words: Sequence[str], pytests: pytest.Parser) -> None:
    """A module of ours is there, and takes what it is given; others are not ours to know."""
    if (ROOT / name.partition(".")[0]).is_dir() and importlib.util.find_spec(name) is None:
        raise Misspelt(f"there is no module {name}")
    if name == "fsdp_conformance":
        _parse_ours(words, pytests)
