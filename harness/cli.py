"""The ``fsdp-conformance`` command: its subcommands are in ``harness/commands``."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from harness import __version__
from harness.commands import COMMANDS
from harness.data.broken_pipe import NO_READER, drop_output
from harness.data.text import one_line

_HELP = ("-h", "--help", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand: its exit status, 2 if there is no such one or its output has no reader, 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except KeyboardInterrupt:
        print(f"fsdp-conformance {given[0]}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        drop_output()
        return refuse(given[0] if given else "", NO_READER)


def _run(given: list[str]) -> int:
    try:
        return _status(given)
    finally:
        if sys.stdout is not None:  # as where a shell has closed it
            sys.stdout.flush()  # what fails at the end of the process cannot be caught


def _status(given: list[str]) -> int:
    if given[:1] == ["--version"]:
        print(f"fsdp-conformance {__version__}")
        return 0
    if not given or given[0] in _HELP:
        print(_usage(), file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    if given[0] not in COMMANDS:
        near = difflib.get_close_matches(given[0], COMMANDS, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(COMMANDS)}"
        return refuse("", f"there is no command {one_line(given[0], 40)!r}; {advice}")
    module, _ = COMMANDS[given[0]]
    return int(importlib.import_module(module).main(given[1:]))


def refuse(command: str, why: Exception | str, *lines: str) -> int:
    """Print in one line why a command cannot do what it was asked for, and ``lines`` below it; exit status 2."""
    if isinstance(why, BrokenPipeError):  # said by ``main``, of every command alike
        raise why
    name = f"fsdp-conformance {command}".rstrip()
    print("\n".join([f"{name}: {one_line(str(why), 2000)}", *lines]), file=sys.stderr)
    return 2


class Parser(argparse.ArgumentParser):
    """Refuses what it does not understand in one line, without the usage, which ``--help`` shows."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        name = self.prog.removeprefix("fsdp-conformance ")
        sys.exit(refuse(name, f"{message}; `{self.prog} --help` shows what it takes"))


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
