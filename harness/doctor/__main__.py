"""``fsdp-conformance doctor``: check that device and backend have what composable FSDP needs, before any test runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.doctor import findings_text
from harness.doctor.checks import Finding
from harness.doctor.examination import PATIENCE, Examination, Refused
from harness.doctor.imports import AUTOLOAD, IMPORT_TORCH, torch_itself
from harness.records.output import replace_file

_STATUS = """exit status:
  0  nothing is missing or wrong that a MUST depends on
  1  something is missing or wrong that a MUST depends on
  2  the checks could not run: an option is wrong, or time ran out
"""


def main(arguments: Sequence[str]) -> int:
    """Examine, print and write; the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 1 <= options.patience <= 3600:
        parser.error(f"argument --patience: expected 1 to 3600 seconds, got {options.patience:g}")
    try:
        notice = _print_finding if options.json != "-" else _keep_quiet
        examined = examine(Examination(options.implementation, options.backend, options.patience, notice=notice))
    except Refused as refused:
        return refuse("doctor", refused)
    if options.json != "-":
        print(findings_text.text(examined))
    return _written(options.json, examined)


def examine(examined: Examination) -> Examination:
    """Ask everything. Raises Refused if the command line is wrong.

    torch is imported here only after a process of its own has done so, if need be without what loads itself.
    """
    examined.add(torch_itself(examined.patience))
    if examined.is_broken(IMPORT_TORCH):
        os.environ[AUTOLOAD] = "0"
        if torch_itself(examined.patience).is_fault:
            return examined
    from harness.doctor.stages import ask_subject

    ask_subject(examined)
    return examined


def _print_finding(found: Finding) -> None:
    print(findings_text.line(found), flush=True)


def _keep_quiet(found: Finding) -> None:
    """The JSON has it."""


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance doctor",
        description="Name each hook, operation and collective that composable FSDP needs of a device and a\n"
        "process-group backend, whether it is there and right, and what to do if not. It takes a\n"
        "minute at most, whatever the plugin does: one that raises, hangs or crashes\n"
        "becomes a finding. docs/doctor.md lists all checks.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subject = "NAME|module:attribute"
    words = "implementation to check (default: torch)"
    parser.add_argument("--implementation", default="torch", metavar=subject, help=words)
    words = "where ranks run (default: auto, what this machine has)"
    parser.add_argument("--backend", default="auto", metavar=subject, help=words)
    words = "write the findings as JSON too; - prints it in place of text"
    parser.add_argument("--json", default="", metavar="FILE|-", help=words)
    words = "limit for one check; for all together three times that (default: %(default)g)"
    parser.add_argument("--patience", type=float, default=PATIENCE, metavar="SECONDS", help=words)
    return parser


def _written(file: str, examined: Examination) -> int:
    """Write the JSON where it is wanted; the exit status."""
    if file == "-":
        sys.stdout.write(findings_text.as_json(examined))
    elif file:
        try:
            replace_file(Path(file), findings_text.as_json(examined).encode(), "--json")
        except OSError as error:
            return refuse("doctor", error)
    return findings_text.status(examined)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
