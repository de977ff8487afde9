"""``fsdp-conformance run``: the suites on one or more implementations, a record file each, and a page of all."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.commands.pytest_process import REFUSED, run_recorded
from harness.report.__main__ import add_outputs
from harness.report.__main__ import main as report
from harness.vendor.api import Backend
from harness.vendor.load import factory_target, target

_REST = """common options of pytest:
  --waivers FILE.toml          known failures
  --level must|should|all      which requirements are judged (default: all)
  --world threads|processes    only one kind of world (default: both)
  --hypothesis-profile quick|full|soak
                               how many cases are run (default: quick)
  --only NAME,…                only these chapters and requirements: parity,sharding/layout
  --failed RUN.jsonl           only the results that are red in this record file
  --timeout SECONDS            end a test that takes longer, as a failure

Ctrl-C and SIGTERM end the run properly: results so far are recorded, the page is written and says that the run was
interrupted, and no further implementation is judged.

exit status:
  0  no result is red; the page says whether something was not run
  1  a result is red (it fails, its waiver is stale, or the suite broke), or the run has a problem,
     such as a waiver that matches nothing
  2  the run was interrupted, or stopped because ranks cannot be started or nothing reads its output, or there is
     no page
  6  the record file could not be written, as on a full disk, so the run was stopped
  other numbers are pytest's: 4 means that an option is wrong, or that another run is writing the record file;
  137 that pytest was killed
"""
_INTERRUPTED = 2


def main(arguments: Sequence[str]) -> int:
    """Run the suites; pytest's exit status, or the report's if that is worse."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.record is not None:
        parser.error(f"argument --record: expected the folder of record files, as -o FOLDER, got {options.record!r}")
    names = dict.fromkeys(options.implementation or _built_in())
    files = {name: _file_name(name) for name in names}
    if len(set(files.values())) < len(files):
        parser.error(f"argument --implementation: {', '.join(files)} would write the same files; run them one by one")
    try:
        _check_shared(options)
    except ValueError as error:
        return refuse("run", error)
    return _run(options, files, rest)


def _check_shared(options: argparse.Namespace) -> None:
    """What all implementations would be refused for. Raises ValueError for names that are not known."""
    for backend in (options.backend, *([options.fallback] if options.fallback not in (None, "none") else [])):
        target(backend, Backend)
    if options.model:
        factory_target(options.model)


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance run",
        description="Run the suites on each implementation. Writes a record file for each, and one page.html, to a\n"
        "folder. The file of NAME is NAME.jsonl, and that of module:attribute is module-attribute.jsonl.\n"
        "Options that this command does not have go to pytest.",
        epilog=_REST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviated option may be one of pytest's
    )
    parser.add_argument(
        "--implementation",
        action="append",
        metavar="NAME|module:attribute",
        help="implementation to judge; may be given more than once (default: torch, and the reference if installed)",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        metavar="NAME|module:attribute",
        help="where ranks run: gloo, nccl, your own, or auto: what this machine has (default: auto)",
    )
    parser.add_argument(
        "--fallback",
        metavar="NAME|module:attribute",
        help="where to judge requirements of what the backend lacks, such as streams on CPUs\n"
        "(default: simulated, devices for which no hardware is needed, if the backend is auto; otherwise none)",
    )
    parser.add_argument(
        "--model",
        metavar="module:function",
        help="judge your own model in place of the suites' nets: a function that returns (net, inputs)",
    )
    words = "folder to write to, created if missing (default: %(default)s)"
    parser.add_argument("-o", "--output", type=Path, default=Path("reports"), metavar="FOLDER", help=words)
    words = (
        "pytest's JUnit file, which most CI systems show; one per implementation, FILE-NAME.xml, if there are several"
    )
    parser.add_argument("--junitxml", "--junit-xml", type=Path, metavar="FILE.xml", help=words)
    words = "pytest-html's page; one per implementation, FILE-NAME.html, if there are several"
    parser.add_argument("--html", type=Path, metavar="FILE.html", help=words)
    add_outputs(parser)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    return parser


def _built_in() -> list[str]:
    """torch, and the reference if it is installed beside the suites."""
    there = importlib.util.find_spec("reference_models") is not None
    reference = there and importlib.util.find_spec("reference_models.subject") is not None
    return ["torch", "reference"] if reference else ["torch"]


def _run(options: argparse.Namespace, files: dict[str, str], rest: list[str]) -> int:
    """Judge one implementation after the other (``files``: name of its files by implementation), and make the page."""
    records, status, left = [], 0, list(files)
    judging = ["suites.model.own_model", "--model", options.model] if options.model else ["suites"]
    for name, file in files.items():
        record = options.output / f"{file}.jsonl"
        line = ["--pyargs", *judging, "--implementation", name, "--backend", options.backend]
        line += ["--fallback", options.fallback or ("simulated" if options.backend == "auto" else "none")]
        line += [*_others(options, file if len(files) > 1 else ""), *_workers(rest), *rest]
        ended, is_interrupted, is_written = run_recorded(line, record)
        left.remove(name)
        status = _INTERRUPTED if is_interrupted else max(status, ended)
        records += [record] if is_written else []
        if status == _INTERRUPTED:  # whatever it was, such as worlds that cannot start, another would meet it, too
            break
    if left:
        print(f"fsdp-conformance run: stopped, see above; not judged: {', '.join(left)}", file=sys.stderr)
    if not records:
        if status not in (_INTERRUPTED, REFUSED):  # of these pytest has said why
            print("fsdp-conformance run: nothing was recorded, so there is no page; see above", file=sys.stderr)
        return status or 1
    others = [*(["--json", str(options.json)] if options.json else [])]
    others += [word for word, is_asked in (("--github", options.github), ("--open", options.open)) if is_asked]
    return max(status, report([*map(str, records), "-o", str(options.output / "page.html"), *others]))


def _others(options: argparse.Namespace, name: str) -> Iterator[str]:
    """The files that pytest is to write beside the record, with the name of the implementation if there are several."""
    for option, path in (("--junitxml", options.junitxml), ("--html", options.html)):
        if path is not None:
            yield f"{option}={path.parent / f'{path.stem}-{name}{path.suffix}' if name else path}"


def _workers(rest: list[str]) -> list[str]:
    """Workers of pytest-xdist if it is installed, unless the user decides; our plugin chooses how many."""
    decided = any(word.startswith(("-n", "--numprocesses", "--dist")) for word in rest)
    return [] if decided or importlib.util.find_spec("xdist") is None else ["--numprocesses", "auto"]


def _file_name(spec: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in spec)
