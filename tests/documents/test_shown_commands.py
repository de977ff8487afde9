"""Commands that documents and examples show can be typed: the parsers that they are for take them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents.shown_commands import ROOT, Misspelt, commands, parse, shell_of

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [path for kind in ("yml", "sbatch", "md") for path in sorted((ROOT / "examples").rglob(f"*.{kind}"))]


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_that_are_shown_can_be_typed(path: Path, pytestconfig: pytest.Config) -> None:
    """Each option of each command in a block of shell is one that the command has, with a value that it takes."""
    for text in shell_of(path):
        for words in commands(text):
            parse(words, pytestconfig._parser)


def test_examples_of_ci_show_what_to_run() -> None:
    """Each workflow and script asks the doctor first and then judges, with records."""
    for path in EXAMPLES:
        if path.suffix != ".md":
            shown = [words for text in shell_of(path) for words in commands(text) if "pip" not in words]
            lines = list(map(" ".join, shown))
            assert lines[0].startswith("fsdp-conformance doctor")
            assert any(line.startswith("fsdp-conformance run") or "--record" in line for line in lines)


def test_what_is_misspelt_is_seen(pytestconfig: pytest.Config) -> None:
    """An option, a value, a command or a file that there is not is refused, so that taking the rest means something."""
    shown = [
        "fsdp-conformance doctor --backnd gloo",
        "fsdp-conformance docter",
        "python -m fsdp_conformance docter",
        "fsdp-conformance doctor --patience soon",
        "fsdp-conformance run --wrld threads",
        "x=1 && nice -n5 pytest suites --levels must | tail",
        "pytest suites/test_of_nothing.py",
        "pytest --pyargs suites.training.test_of_nothing",
        "torchrun --nodes=2 -m fsdp_conformance attached -- pytest suites",
        "torchrun --nnodes=2 -m harness.atached -- pytest suites",
        "srun python -m fsdp_conformance attached pytst suites",
        "mpiexec -n 2 -genv MASTER_ADDR here python -m fsdp_conformance attached -- pytst suites",
    ]
    for text in shown:
        [words] = commands(text)
        with pytest.raises(Misspelt):
            parse(words, pytestconfig._parser)


def test_commands_are_found_in_shell() -> None:
    """Continued lines are one, comments none, and what starts a command or takes its output is not of it."""
    lines = [
        "A=1 srun --ntasks=1 pytest suites \\",
        '    --record "$DIR/a b" > log  # so',
        "# pytest",
        "pip install pytest && fsdp-conformance doctor",
    ]
    assert list(commands("\n".join(lines))) == [
        ["pytest", "suites", "--record", "$DIR/a b"],
        ["fsdp-conformance", "doctor"],
    ]


def test_scripts_of_the_examples_are_shell() -> None:
    """bash can parse them."""
    bash = shutil.which("bash")
    assert bash is not None, "the project's own tests need bash"
    for path in (ROOT / "examples").rglob("*.sbatch"):
        subprocess.run([bash, "-n", str(path)], check=True)
