"""``fsdp-conformance run``: the suites on one or more implementations, a record file each, and a page of all."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.provenance import suites_folder
from harness.report.__main__ import main as report

_REST = """options of pytest that are asked for most:
  --waivers FILE.toml          known failures
  --level must|should|all      which requirements are judged (default: all)
  --world threads|processes    only one kind of world (default: both)
  --hypothesis-profile quick|full|soak
                               how many cases are drawn (default: quick)
  --timeout SECONDS            end a test that takes longer, as a failure
  --junitxml FILE              what most CI shows

exit status:
  0  no row is red; the page says whether something was not run
  1  a row is red (it fails, its waiver is stale, or the suite broke), or the run has a problem,
     such as a waiver that matches nothing
  2  the run was interrupted, or there is no page
  other numbers are pytest's: 4 means that an option is wrong
"""


def main(arguments: Sequence[str]) -> int:
    """Run the suites; pytest's exit status, or the report's if that is worse."""
    options, rest = _parser().parse_known_args(arguments)
    return _run(options.implementation or _built_in(), options.backend, options.output, rest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fsdp-conformance run",
        description="Run the suites on each implementation. Writes to one folder a record file each, NAME.jsonl, and\n"
        "page.html of all of them. What is not an option of this command goes to pytest.",
        epilog=_REST,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--implementation",
        action="append",
        metavar="NAME|module:attribute",
        help="who is judged; may be given more than once (default: torch, and the reference where it is there)",
    )
    parser.add_argument(
        "--backend",
        default="auto",
        metavar="NAME|module:attribute",
        help="where ranks run: gloo, nccl, one of your own, or auto, what this machine has (default: auto)",
    )
    words = "folder to write to, made if it is not there (default: %(default)s)"
    parser.add_argument("-o", "--output", type=Path, default=Path("reports"), metavar="FOLDER", help=words)
    return parser


def _built_in() -> list[str]:
    """torch, and the reference where it is installed beside the suites."""
    there = importlib.util.find_spec("reference_models") is not None
    reference = there and importlib.util.find_spec("reference_models.subject") is not None
    return ["torch", "reference"] if reference else ["torch"]


def _run(implementations: list[str], backend: str, output: Path, rest: list[str]) -> int:
    records, status = [], 0
    suites = suites_folder()
    assert suites is not None, "the suites are installed with the harness"
    for name in implementations:
        record = output / f"{_file_name(name)}.jsonl"
        line = [sys.executable, "-m", "pytest", str(suites), "--implementation", name, "--backend", backend]
        line += ["--record", str(record), *_workers(rest), *rest]
        status = max(status, subprocess.run(line, check=False).returncode)
        if record.exists():
            records.append(str(record))
    if not records:
        print("fsdp-conformance: nothing was recorded, so there is no page; see the messages above", file=sys.stderr)
        return status or 1
    return max(status, report([*records, "-o", str(output / "page.html")]))


def _workers(rest: list[str]) -> list[str]:
    """Workers of pytest-xdist where it is there, unless the user decides; how many, the plugin knows."""
    decided = any(word.startswith(("-n", "--numprocesses", "--dist")) for word in rest)
    if decided or importlib.util.find_spec("xdist") is None:
        return []
    in_their_order = ["--dist", "load", "--maxschedchunk", "1"]  # else each would begin with a part of its own
    return ["--numprocesses", "auto", *in_their_order]


def _file_name(spec: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in spec)
