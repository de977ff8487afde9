"""``fsdp-conformance reproduce``: run a recorded row again, or print what shows its failure elsewhere."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.again import launched, pytest_line
from harness.provenance import suites_folder
from harness.report.read import Run, read_run
from harness.report.text import one_line, visible
from harness.reproduce.choose import Choice, case_of, choose, others_red
from harness.reproduce.showing import script_of
from harness.suite_tests import ATTACHED

_ENDS = """ID is a node id, a requirement, or a requirement in a world:
  'suites/test_training_parity.py::test_…[threads]'   parity/exact   'parity/exact[threads]'
Of several rows the first that fails is taken.

Nothing is believed of the file that these suites do not know: the line that a record holds is not run, and a vendor's
module is imported only if it is named here, by --implementation or --backend.

exit status: pytest's of the row that was run; of --script and --torchrun 0; 2 if there is no such row, or nothing can
be made of it."""


def main(arguments: Sequence[str]) -> int:
    """Run the row again, or print; the exit status."""
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
            sys.stdout.buffer.write(script_of(choice, run).encode())  # as Python reads it, whatever the terminal's is
            return 0
        words = _words(choice, folder, options.torchrun) + given[cut + 1 :]
    except ValueError as error:
        print(f"fsdp-conformance reproduce: {one_line(str(error), 2000)}", file=sys.stderr)
        return 2
    print(visible(shlex.join(words)), flush=True)
    if options.torchrun:
        return 0
    return subprocess.run([sys.executable, "-m", *words], check=False).returncode


def _words(choice: Choice, folder: Path, torchrun: bool) -> list[str]:
    """The command that runs the row: pytest's, or torchrun's around it."""
    if choice.record.world == ATTACHED and not torchrun:
        raise ValueError("that row was run on ranks that a launcher had started; --torchrun prints the line for it")
    case = case_of(choice)
    words = pytest_line(choice.nodeid(folder), choice.implementation, choice.backend, case)
    if not torchrun:
        return words
    ranks = case.get("world_size") if case is not None else max(choice.record.world_sizes, default=None)
    if type(ranks) is not int or ranks < 1:
        raise ValueError("the record does not say how many ranks there were")
    return launched(words, ranks)


def _tell_others(run: Run, choice: Choice) -> None:
    """Say that other rows of the requirement fail, too, and how to have one of them."""
    others = others_red(run, choice.record)
    if choice.record.verdict.is_red and others:
        this, other = (one_line(shlex.quote(nodeid), 300) for nodeid in (choice.record.nodeid, others[0]))
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        print(f"fsdp-conformance reproduce: this is {this}; {other}{more} is red, too", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fsdp-conformance reproduce",
        usage="fsdp-conformance reproduce [--script | --torchrun] [OPTION …] RUN.jsonl ID [-- PYTEST-OPTION …]",
        description="Run again what a record is of: the same test, on the same subject, with the very case that "
        "failed. Or print it as a script of plain torch, which needs neither pytest nor the suites, or as the line "
        "that runs it on ranks that torchrun starts.",
        epilog=_ENDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN.jsonl", help="a record file")
    parser.add_argument("id", metavar="ID", help="which row of it")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--script", action="store_true", help="print a Python file that shows the failure by itself")
    how.add_argument("--torchrun", action="store_true", help="print the line that runs it in the attached world")
    for kind, words in (("implementation", "who is judged"), ("backend", "where ranks run")):
        default = f"{words} (default: as recorded, if that is built in)"
        parser.add_argument(f"--{kind}", default="", metavar="NAME|module:attribute", help=default)
    return parser
