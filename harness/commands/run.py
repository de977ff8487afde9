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


def main(arguments: Sequence[str]) -> int:
    """Run the suites; pytest's exit status, or the report's if that is worse."""
    parser = argparse.ArgumentParser(
        prog="fsdp-conformance run",
        description="Run the suites on each implementation, write one record file each, and one page of all. "
        "Further options, e.g. --world threads or --hypothesis-profile full, go to pytest.",
    )
    parser.add_argument(
        "--implementation",
        action="append",
        metavar="NAME|module:attribute",
        help="who is judged; may be given more than once (default: torch, and the reference where it is there)",
    )
    parser.add_argument(
        "--backend", default="auto", metavar="NAME|module:attribute", help="where ranks run (default: auto)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("reports"), help="folder to write to (default: reports)"
    )
    options, rest = parser.parse_known_args(arguments)
    return _run(options.implementation or _built_in(), options.backend, options.output, rest)


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
    return ["--numprocesses", "auto", "--dist", "worksteal"]


def _file_name(spec: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in spec)
