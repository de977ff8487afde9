"""The header of a record file, made where tests run: who is judged, where, by what, and which results are planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pytest
from hypothesis import settings

from harness import __version__
from harness.data.kinds import WORLDS
from harness.pytest_plugin.environment import environment
from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.pytest_plugin.options import option
from harness.pytest_plugin.recording import utc_now
from harness.records.provenance import Provenance, sources_digest
from harness.records.record import SCHEMA, Header
from harness.vendor.api import NOT_MENTIONED
from harness.vendor.features import Feature


def header_of(config: pytest.Config, subject: LoadedSubject, plan: Sequence[str], provenance: Provenance) -> Header:
    """The header of a run; ``plan`` has the node id of every planned result. The recorder adds the command."""
    implementation, world = subject.implementation, option(config, "world")
    return Header(
        schema=SCHEMA,
        implementation=subject.name,
        backend=subject.backend.name,
        worlds=list(WORLDS) if world == "both" else [world],
        profile=str(settings._current_profile),
        level=option(config, "level"),
        plan=list(plan),
        suite_version=__version__,
        claims=sorted(map(str, implementation.claims)),
        not_claimed={
            str(each): implementation.not_claimed.get(each, NOT_MENTIONED)
            for each in Feature
            if each not in implementation.claims
        },
        environment={**environment(), **({"model": subject.subject.model} if subject.subject.model else {})},
        started=utc_now(),
        seed=str(config.getoption("--hypothesis-seed", None) or "derandomized"),
        sources=sources_digest(),
        **asdict(provenance),
    )
