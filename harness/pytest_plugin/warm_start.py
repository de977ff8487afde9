"""Getting ranks ready before the first is needed: a run's first red row comes seconds sooner.

The process that ranks are forked from imports torch and the suites, as this one must; on two cores both at once::

    this process    imports torch · collects tests · imports the suites      ─▶ runs the first test
    fork server               └▶ imports torch · imports the suites · warms up ─▶ forks its ranks
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.pytest_plugin.options import option
from harness.pytest_plugin.recorder import has_workers, subject_of
from harness.vendor.load import load_backend
from harness.worlds.attached import fleet as attached_fleet
from harness.worlds.workers import start


def start_ahead(config: pytest.Config, modules: Sequence[str]) -> None:
    """Start the fork server if this process will run the tests of ``modules``."""
    if not modules or config.option.collectonly or has_workers(config):
        return
    try:
        backend, subject = load_backend(option(config, "backend")), subject_of(config).modules
    except ValueError:
        return  # what is wrong with the subject will be said where it is judged
    start.preload_programs([*modules, *subject])
    start.start_ahead(backend)
    fleet = attached_fleet.known()
    if fleet is not None:
        fleet.start_ahead(backend)
