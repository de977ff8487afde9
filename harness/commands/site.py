"""``fsdp-conformance site``: static pages from many runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.data.text import plural, visible
from harness.site.build import build
from harness.site.given import given_runs
from harness.site.history import histories_of


def main(arguments: Sequence[str]) -> int:
    """Build the site, or say in a sentence why not."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        histories = histories_of(given_runs(options.runs))
        files = build(histories, options.output)
    except (OSError, ValueError) as error:
        return refuse("site", error)
    for history in histories:
        print(visible(f"{history.name}: {plural(len(history.runs), 'run')}; newest {history.shown.standing}"))
    print(visible(f"{plural(len(files), 'file')}; begin with {options.output / 'index.html'}"))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance site",
        description="Build static pages from many runs: subjects and chapters in a matrix, the history of each subject "
        "and result, the page of each run under an address that stays, and a badge for READMEs. The pages need no "
        "server and no network. Give all runs each time: the site is made anew, and pages of other runs stay.",
        epilog="exit status: 0 the site was written, whatever it says; 2 a file cannot be read, verified or written.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="an archive of bundle, or a record file")
    words = "the folder of the site (default: %(default)s)"
    parser.add_argument("-o", "--output", type=Path, default=Path("site"), metavar="DIR", help=words)
    return parser
