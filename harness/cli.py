"""The ``fsdp-conformance`` command: its subcommands are in ``harness/commands``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from harness import __version__
from harness.commands import COMMANDS
from harness.data.text import one_line

_HELP = ("-h", "--help", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand: its exit status, 2 if there is no such command, 130 if Ctrl-C ended it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--version"]:
        print(f"fsdp-conformance {__version__}")
        return 0
    if not given or given[0] in _HELP:
        print(_usage(), file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    if given[0] not in COMMANDS:
        print(f"fsdp-conformance: expected one of {', '.join(COMMANDS)}, got {given[0]!r}", file=sys.stderr)
        return 2
    module, _ = COMMANDS[given[0]]
    try:
        return int(importlib.import_module(module).main(given[1:]))
    except KeyboardInterrupt:
        print(f"fsdp-conformance {given[0]}: interrupted", file=sys.stderr)
        return 130


def refuse(command: str, why: Exception | str, *lines: str) -> int:
    """Print in one line why a command cannot do what it was asked for, and ``lines`` below it; exit status 2."""
    print("\n".join([f"fsdp-conformance {command}: {one_line(str(why), 2000)}", *lines]), file=sys.stderr)
    return 2


def _usage() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: fsdp-conformance COMMAND [OPTION …]",
            "",
            "Does composable FSDP train, save and load as the unsharded model would: torch's own on your device and",
            "backend, or an implementation of yours?",
            "",
            *(f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()),
            "",
            "To begin: fsdp-conformance doctor, then fsdp-conformance run, then look at reports/page.html.",
            "fsdp-conformance COMMAND --help tells the options of one; docs/vendors.md goes through all of it.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
