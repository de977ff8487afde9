"""A run on a machine with GPUs, ``tox run -e gpu``: everything that needs one, within 25 minutes.

    python -m tests.gpu [--backend nccl] [--only TEXT] [--again] [-o reports/gpu]

Parts that have ended are not run again, unless ``--again``; each may fail alone. What came of them is written to
``gpu.md`` of the folder, with the machine and its versions, beside the records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from harness.pytest_plugin.environment import environment
from harness.records.reader import RecordFileError, read_run
from harness.records.standing import standing
from tests import ROOT
from tests.gpu.parts import Ended, Part, parts, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has not ended yet, and write the page; 1 if a part has not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--shared", default="tests.gpu.backends:shared", help="whose device several processes use")
    parser.add_argument("--several", default="tests.gpu.backends:several", help="with more ranks than devices")
    parser.add_argument("--through-host", default="tests.gpu.backends:through_host", help="whose ranks meet on the CPU")
    parser.add_argument("--only", default="", metavar="TEXT", help="parts whose name contains this")
    parser.add_argument("--again", action="store_true", help="parts that have ended, too")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "reports" / "gpu", metavar="FOLDER")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    every = parts(options.backend, options.shared, options.several, options.through_host, options.output)
    ended = {} if options.again else known(options.output)
    for part in every:
        if options.only in part.name and part.name not in ended:
            ended[part.name] = run(part)
            print(f"{part.name}: {ended[part.name].end} after {ended[part.name].seconds:.0f} s", flush=True)
            _done(options.output).write_text(json.dumps([asdict(one) for one in ended.values()], indent=1))
    (options.output / "gpu.md").write_text(page(every, ended), encoding="utf-8")
    return int(any(one.end != "passed" for one in ended.values()))


def _done(folder: Path) -> Path:
    return folder / "parts.json"


def known(folder: Path) -> dict[str, Ended]:
    """The parts that have ended."""
    if not _done(folder).exists():
        return {}
    return {one["name"]: Ended(**one) for one in json.loads(_done(folder).read_text(encoding="utf-8"))}


def page(every: Sequence[Part], ended: dict[str, Ended]) -> str:
    """The machine, a table of the parts, and the last lines of those that did not pass."""
    facts = "\n".join(f"| {name} | {value} |" for name, value in environment().items())
    rows = "\n".join(_row(part, ended.get(part.name)) for part in every)
    tails = "\n".join(f"## {one.name}\n\n```\n{one.tail}\n```\n" for one in ended.values() if one.end != "passed")
    return (
        "# A run on GPUs\n\nMade by `tox run -e gpu`.\n\n"
        f"| fact | value |\n|---|---|\n{facts}\n\n"
        f"| part | end | seconds | verdict |\n|---|---|---|---|\n{rows}\n\n{tails}"
    )


def _row(part: Part, ended: Ended | None) -> str:
    if ended is None:
        return f"| {part.name} | not run | | |"
    return f"| {part.name} | {ended.end} | {ended.seconds:.0f} | {_verdict(part)} |"


def _verdict(part: Part) -> str:
    if not part.record:
        return ""
    try:
        return str(standing(read_run(Path(part.record))))
    except (OSError, RecordFileError) as error:
        return f"no record: {error}"


if __name__ == "__main__":
    sys.exit(main())
