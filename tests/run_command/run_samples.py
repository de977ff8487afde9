"""The ``run`` command on a file of samples in place of the suites."""

from __future__ import annotations

from pathlib import Path


def command_on(file: str, output: Path, *options: str) -> list[str]:
    """The words behind ``python -m`` in the repository: pytest is to take the samples, and to ignore the suites."""
    samples = [f"tests/{file}", "--ignore-glob", "suites/*test_*"]
    return ["harness.cli", "run", *samples, "-q", "-p", "no:cacheprovider", "-o", str(output), *options]
