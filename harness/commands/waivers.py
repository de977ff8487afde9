"""``fsdp-conformance waivers check|suggest``: check waivers, or print a stanza for each failure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from harness.cli import Parser, refuse
from harness.data.text import one_line, plural
from harness.records.provenance import suites_folder
from harness.records.reader import RecordFileError, read_run
from harness.requirements.finder import SuiteTest, suite_tests
from harness.waivers.check import Known, Weight, check
from harness.waivers.suggest import is_unexcused, suggestions
from harness.waivers.waiver import read_waivers


def main(arguments: Sequence[str]) -> int:
    """Check waivers, or suggest some: 0 in order, 1 if a waiver is not, 2 if a file cannot be read."""
    options = _parser().parse_args(arguments)
    try:
        return _check(options) if options.act == "check" else _suggest(options)
    except ValueError as error:
        return refuse(f"waivers {options.act}", error)


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance waivers",
        description="Waivers are known failures with an issue, a reason and a last day. check reports for each waiver "
        "of a file whether it matches a requirement, has expired, or is still needed; suggest prints a stanza for each "
        "failure of a run, to be completed.",
        epilog="`fsdp-conformance waivers check --help` lists the options of check.",
    )
    acts = parser.add_subparsers(dest="act", required=True, metavar="check|suggest")
    one = acts.add_parser(
        "check",
        help="check each waiver of a file",
        description="Report for each waiver of a file whether it matches a requirement of the suites, has expired or "
        "will soon, and, with records, whether it is needed, stale, unused or too broad.",
        epilog="exit status: 0 all are in order, warnings included; 1 one is not; 2 a file cannot be read, or the "
        "waivers are not well-formed.",
    )
    one.add_argument("file", type=Path, metavar="FILE.toml", help="the waivers, as given to --waivers")
    one.add_argument(
        "--records", type=Path, action="extend", nargs="+", default=[], metavar="RUN.jsonl", help="record files of runs"
    )
    one.add_argument(
        "--on", type=_day, default=date.today(), metavar="YYYY-MM-DD", help="judge as on this day (default: today)"
    )
    words = "folder of the suites, whose files are read but not run (default: those beside the harness)"
    one.add_argument("--suites", type=Path, metavar="FOLDER", help=words)
    two = acts.add_parser(
        "suggest",
        help="print a stanza for each failure of a run",
        description="Print TOML with a stanza for each result that fails without a waiver. Issue, reason and last day "
        "are empty, and the file is refused until they are filled in.",
        epilog="exit status: 0 printed, also if nothing fails; 2 the file cannot be read, or no such result fails.",
    )
    two.add_argument("run", type=Path, metavar="RUN.jsonl", help="a record file that a run wrote")
    words = "only for this requirement or node id; may be given more than once"
    two.add_argument("--id", action="append", default=[], metavar="ID", help=words)
    return parser


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a date like 2027-03-01, got {one_line(text, 40)!r}") from error


def _check(options: argparse.Namespace) -> int:
    waivers = read_waivers(options.file)
    known = Known(_tests(options.suites), [read_run(path) for path in options.records], options.on)
    findings = check(waivers, known)
    for finding in findings:
        print(finding)
    weights = [finding.weight for finding in findings]
    errors, warnings = weights.count(Weight.ERROR), weights.count(Weight.WARNING)
    print(f"{plural(len(waivers), 'waiver')}: {plural(errors, 'error')}, {plural(warnings, 'warning')}")
    return 1 if errors else 0


def _tests(folder: Path | None) -> tuple[SuiteTest, ...] | None:
    """The tests of the suites; None where there are none to look at."""
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--suites {folder}: expected the folder of a suite; this is no folder")
    place = folder or suites_folder()
    return suite_tests(place.resolve()) if place is not None else None


def _suggest(options: argparse.Namespace) -> int:
    run = read_run(options.run)
    fails = {name for one in run.records if is_unexcused(one) for name in (one.requirement, one.nodeid)}
    strange = [name for name in options.id if name not in fails]
    if strange:
        raise RecordFileError(f"{options.run}: no result of {strange[0]!r} fails there; give another --id, or none")
    print(suggestions(run, options.id), end="")
    return 0
