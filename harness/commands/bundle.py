"""``fsdp-conformance bundle``: one archive of record files, with their page and waiver files, for submission."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cli import Parser, refuse
from harness.commands.verify import lines_of
from harness.data.text import plural, visible
from harness.records.output import replace_file
from harness.records.provenance import sources_digest
from harness.submission.archive import SubmissionError, pack, unpack
from harness.submission.bundle import members_of
from harness.submission.verify import verify

_EXIT_STATUS = """exit status: 0 the archive was written, and verify accepts it; 1 verify would refuse it, so it was not
written; 2 a file cannot be read or written. Whether the subject conforms does not matter here."""


def main(arguments: Sequence[str]) -> int:
    """Make the archive, verify it as a receiver would, and write it if it has no problem."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        _check_output(options.output, [*options.records, *options.waivers])
        data = pack(members_of(options.records, options.waivers))
        found = verify(unpack(data, options.output.name), sources_digest())
        if found.is_verified:
            replace_file(options.output, data, "-o")
    except (OSError, ValueError) as error:
        return refuse("bundle", error)
    print("\n".join(lines_of(found)))
    if not found.is_verified:
        print("fsdp-conformance bundle: verify would refuse it, so nothing was written", file=sys.stderr)
        return 1
    print(visible(f"{options.output}: {plural(len(found.members), 'member')}, {len(data)} bytes"))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="fsdp-conformance bundle",
        description="Make one archive of record files, with the page made of them, the waiver files that the runs "
        "read, and a manifest with the SHA-256 of each. The same files give the same bytes. The archive is verified "
        "before it is written, by the checks of `verify`.",
        epilog=_EXIT_STATUS,
    )
    parser.add_argument("records", nargs="+", type=Path, metavar="run.jsonl", help="a record file that a run wrote")
    parser.add_argument(
        "--waivers",
        action="append",
        type=Path,
        default=[],
        metavar="FILE.toml",
        help="a waiver file that a run read with --waivers; may be given more than once (the suites' own is found)",
    )
    default = Path("submission.zip")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=default,
        metavar="FILE.zip",
        help="where to write it (default: %(default)s)",
    )
    return parser


def _check_output(output: Path, given: Sequence[Path]) -> None:
    if output.is_dir():
        raise SubmissionError(
            f"{output}: is a directory; name the archive itself, such as -o {output / 'submission.zip'}"
        )
    if output.exists() and any(path.exists() and output.samefile(path) for path in given):
        raise SubmissionError(f"{output}: is one of the files to bundle, which the archive would replace; name another")
