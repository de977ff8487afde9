"""The command line as a whole: what it offers, and what it says to what it does not offer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness import __version__, cli
from harness.commands import COMMANDS
from tests import ROOT as ROOT


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Help on stdout has a line for each command, with what it does."""
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert all(f"  {name:{max(map(len, COMMANDS))}}  {what}" in said for name, (_, what) in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_own_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``COMMAND --help`` ends well, names the command as it is typed, and says more than argparse does by itself."""
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: fsdp-conformance {name}")
    assert len(said.split()) > 30


def test_without_a_command_help_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing asked for is status 2, with the help on stderr."""
    assert cli.main([]) == 2
    assert "usage: fsdp-conformance COMMAND" in capsys.readouterr().err


def test_the_version_is_the_suites(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints it."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"fsdp-conformance {__version__}\n"


def test_help_needs_nothing_but_python() -> None:
    """Help comes without importing torch or pytest, so also where an import of theirs fails."""
    code = (
        "import sys\nfrom harness import cli\ncli.main(['--help'])\nassert not {'torch', 'pytest'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
