"""``fsdp-conformance reproduce``: run a recorded case again, or print a script or command that shows its failure."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.commands.pytest_process import PYTEST
from harness.data.kinds import ATTACHED
from harness.data.text import one_line, visible
from harness.records.command_lines import launched, located, pytest_line
from harness.records.provenance import suites_folder
from harness.records.reader import Run, read_run
from harness.reproduce.choose import Choice, choose, others_red
from harness.reproduce.script import NoScript, script_of

_ENDS = """ID is a node id, a requirement, or a requirement in a world:
  'suites/training/test_training_parity.py::test_…[threads]'   parity/exact   'parity/exact[threads]'
Of several results the first that failed is taken.

The file is not trusted: the command line in a record is never run, and a vendor's module is imported only if
--implementation or --backend names it.

exit status: pytest's of the test that was run; of --script and --torchrun 0; 2 if there is no such result, if it does
not fit these suites, or if there is no script for it: the line that runs its case is then printed to stderr."""


def main(arguments: Sequence[str]) -> int:
    """Run the test again, or print; the exit status."""
    given = list(arguments)
    cut = given.index("--") if "--" in given else len(given)
    options = _parser().parse_args(given[:cut])
    folder = suites_folder()
    assert folder is not None, "the suites are installed with the harness"
    try:
        run = read_run(options.run)
        choice = choose(run, options.id, folder, options.implementation, options.backend)
        _tell_others(run, choice)
        if options.script:
            return _print_script(choice, folder)
        words = _words(choice, folder, options.torchrun) + given[cut + 1 :]
    except ValueError as error:
        return refuse("reproduce", error)
    print(visible(shlex.join(words)), flush=True)
    if options.torchrun:
        return 0
    return subprocess.run([*PYTEST, *words[1:]], check=False).returncode


def _print_script(choice: Choice, folder: Path) -> int:
    """Print the script; if there is no template, print why, and which command shows the failure instead."""
    try:
        text = script_of(choice)
    except NoScript as why:
        line = shlex.join(_words(choice, folder, torchrun=choice.record.world == ATTACHED))
        return refuse("reproduce", f"{why}; this command runs it instead:", visible(line))
    sys.stdout.buffer.write(text.encode())  # as Python reads it, whatever the terminal's encoding is
    return 0


def _words(choice: Choice, folder: Path, torchrun: bool) -> list[str]:
    """The command that runs the test: pytest's, or torchrun's around it."""
    if choice.record.world == ATTACHED and not torchrun:
        raise ValueError("that result is from the attached world; --torchrun prints the command for it")
    case = choice.case.as_json() if choice.case is not None else None
    words = pytest_line(located(choice.nodeid, folder, Path.cwd()), choice.implementation, choice.backend, case)
    if not torchrun:
        return words
    ranks = case.get("world_size") if case is not None else max(choice.record.world_sizes, default=None)
    if type(ranks) is not int or ranks < 1:
        raise ValueError("the record does not say how many ranks there were")
    return launched(words, ranks)


def _tell_others(run: Run, choice: Choice) -> None:
    """Print that other results of the requirement are red, too, and the id of one."""
    others = others_red(run, choice.record)
    if choice.record.verdict.is_red and others:
        this, other = (one_line(shlex.quote(nodeid), 300) for nodeid in (choice.record.nodeid, others[0]))
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        print(f"fsdp-conformance reproduce: this is {this}; {other}{more} is red, too", file=sys.stderr)


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance reproduce",
        usage="fsdp-conformance reproduce [--script | --torchrun] [OPTION …] RUN.jsonl ID [-- PYTEST-OPTION …]",
        description="Run a recorded result again: the same test, on the same subject, with the case that failed. Or "
        "print a short script that shows the failure with torch alone, if there is a template for it, or the command "
        "that runs the test on ranks started by torchrun.",
        epilog=_ENDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN.jsonl", help="a record file")
    parser.add_argument("id", metavar="ID", help="which result in it")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--script", action="store_true", help="print a short script that needs only torch")
    how.add_argument("--torchrun", action="store_true", help="print the command that runs it in the attached world")
    for kind, words in (("implementation", "the subject"), ("backend", "where ranks run")):
        default = f"{words} (default: as recorded, if that is built in)"
        parser.add_argument(f"--{kind}", default="", metavar="NAME|module:attribute", help=default)
    return parser
