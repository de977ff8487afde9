"""Hypothesis profiles: how many cases a run draws, the same ones each time unless it soaks."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, core, settings
from hypothesis.errors import InvalidArgument

#: One failing case is enough: several at once would be reported as a group that has no single cause.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "print_blob": False,
    "report_multiple_bugs": False,
    # `trial` lives as long as the test, across its examples, on purpose; worlds make a first example slow; a case
    # that this world is too small for is rejected.
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
    "phases": [Phase.explicit, Phase.generate, Phase.shrink],
}


#: The key under which a worker is told the seed.
_SEED = "fsdp_conformance_seed"
#: The names of ours.
PROFILES = ("quick", "full", "soak")


def register() -> None:
    """Make ``quick``, ``full`` and ``soak`` known; ``quick`` is in force if none is asked for.

    On CPU a case takes about 0.15 s of a core: two of each requirement, in two worlds, five minutes on two cores.
    """
    settings.register_profile("quick", max_examples=2, **_COMMON)
    settings.register_profile("full", max_examples=8, **_COMMON)
    settings.register_profile("soak", max_examples=6, **{**_COMMON, "derandomize": False})
    without = [phase for phase in _COMMON["phases"] if phase is not Phase.shrink]
    settings.register_profile("unshrunk", max_examples=2, **{**_COMMON, "phases": without})  # the doctor's
    settings.load_profile("quick")


def check(config: pytest.Config) -> None:
    """Raise UsageError for an unknown profile, which Hypothesis itself would tell by an internal error of pytest."""
    name = config.getoption("--hypothesis-profile", None)
    try:
        settings.get_profile(name or "quick")
    except InvalidArgument as error:
        known = ", ".join(PROFILES)
        raise pytest.UsageError(
            f"--hypothesis-profile {name!r}: expected one of {known}, or one that a conftest.py registers"
        ) from error


def choose_seed(config: pytest.Config) -> None:
    """Give a run that draws other cases each time a seed, which its records keep, so that it can be had again."""
    told = getattr(config, "workerinput", {}).get(_SEED)
    chosen = settings.default.derandomize or config.getoption("--hypothesis-seed") is not None  # type: ignore[union-attr]
    if told is not None or not chosen:
        seed = told if told is not None else random.SystemRandom().randrange(2**32)
        config.option.hypothesis_seed = str(seed)
        core.global_force_seed = seed  # type: ignore[assignment]


def tell_seed(node: Any) -> None:
    """Give a worker of pytest-xdist the seed of the run; it gets no options but those of the command line."""
    node.workerinput[_SEED] = core.global_force_seed
