"""The options of a run, each with an ini twin of the same name, and Hypothesis profiles: how many cases, which seed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, core, settings
from hypothesis.errors import InvalidArgument

from harness.data.kinds import ATTACHED, KINDS, LEVELS
from harness.vendor.load import Subject

OPTIONS = {
    "implementation": ("torch", "implementation to judge: torch, reference, an entry point, or module:attribute"),
    "backend": ("auto", "where ranks run: auto, gloo, nccl, an entry point, or module:attribute"),
    "model": ("", "your own model to judge: module:function, which returns (net, inputs)"),
    "fallback": ("none", "backend for requirements of what --backend lacks: none, simulated, or as for --backend"),
    "world": ("both", "threads, processes or both; or attached, if a launcher has started the ranks"),
    "record": ("", "record file to write, one JSON line per result"),
    "waivers": ("", "TOML file of known failures"),
    "unclaimed": ("leave", "requirements that are not claimed: leave them, or try them to see what could be claimed"),
    "level": ("all", "requirements to judge: must, should (and must), may (and those), or all"),
}
_CHOICES = {"world": (*KINDS, "both"), "level": (*LEVELS, "all"), "unclaimed": ("leave", "try")}


def option(config: pytest.Config, name: str) -> str:
    """The value given on the command line, else in the ini file, else the default."""
    value = config.getoption(f"--{name}")
    return str(value if value is not None else config.getini(name))


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a worker of pytest-xdist: another process, pytest-xdist's controller, keeps the records."""
    return hasattr(config, "workerinput")


def has_workers(config: pytest.Config) -> bool:
    """Whether workers of pytest-xdist run the tests for this process."""
    return not is_worker(config) and config.getoption("dist", "no") != "no" and not config.option.collectonly


def subject_of(config: pytest.Config) -> Subject:
    """The subject that the options name, not yet loaded."""
    return Subject(*(option(config, name) for name in ("implementation", "backend", "model")))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Every option has an ini twin of the same name."""
    group = parser.getgroup("fsdp-conformance")
    for name, (default, words) in OPTIONS.items():
        group.addoption(f"--{name}", default=None, help=f"{words} (default: {default or 'none'})")
        parser.addini(name, words, default=default)
    group.addoption("--case", default=None, help="run only this case, given as JSON, as a record shows it")
    group.addoption("--only", default="", help="run only these chapters and requirements: parity,sharding/layout")
    group.addoption("--failed", default="", help="run only the results that are red in this record file")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Check the options and register the marker; no subject is loaded until a requirement is collected."""
    for name, values in _CHOICES.items():
        if option(config, name) not in values:
            raise pytest.UsageError(f"--{name} {option(config, name)!r}: expected one of {', '.join(values)}")
    if option(config, "world") == ATTACHED:
        _check_attached(config)
    _check_profile(config)
    config.addinivalue_line("markers", "requirement(…): a conformance requirement, see harness/requirements/marker.py")


def _check_attached(config: pytest.Config) -> None:
    """An attached world needs a launcher, and one process that controls its ranks."""
    if is_worker(config) or has_workers(config):
        raise pytest.UsageError("attached ranks obey one process: run without --numprocesses")
    from harness.worlds.attached.fleet import fleet  # imports torch

    try:
        fleet()
    except ValueError as error:
        raise pytest.UsageError(f"--world attached: {error}") from error


# Hypothesis profiles.

_COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "print_blob": False,
    "report_multiple_bugs": False,  # several at once would be reported as a group that has no single cause
    # `trial` lives as long as the test, across its examples, on purpose; worlds make a first example slow; a case
    # that this world is too small for is rejected.
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
    "phases": [Phase.explicit, Phase.generate, Phase.shrink],
}
#: On CPU a case takes about 0.15 s of a core: two of each requirement, in two worlds, five minutes on two cores.
PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"max_examples": 2},
    "full": {"max_examples": 8},
    "soak": {"max_examples": 6, "derandomize": False},
    "unshrunk": {"max_examples": 2, "phases": [Phase.explicit, Phase.generate]},  # the doctor's
}
#: The key under which a worker receives the seed.
_SEED = "fsdp_conformance_seed"


def register_profiles() -> None:
    """Register ``PROFILES`` with Hypothesis; ``quick`` is the default."""
    for name, values in PROFILES.items():
        settings.register_profile(name, **(_COMMON | values))
    settings.load_profile("quick")


register_profiles()  # on import, before the Hypothesis plugin looks for the profile that the user named


def _check_profile(config: pytest.Config) -> None:
    """Raise UsageError for an unknown profile, which Hypothesis itself would report as an internal error of pytest."""
    name = config.getoption("--hypothesis-profile", None)
    try:
        settings.get_profile(name or "quick")
    except InvalidArgument as error:
        known = ", ".join(PROFILES)
        raise pytest.UsageError(
            f"--hypothesis-profile {name!r}: expected one of {known}, or one that a conftest.py registers"
        ) from error


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Choose the seed of a run that draws different cases each time, before any worker starts; the header keeps it."""
    config = session.config
    sent = getattr(config, "workerinput", {}).get(_SEED)
    chosen = settings.default.derandomize or config.getoption("--hypothesis-seed") is not None  # type: ignore[union-attr]
    if sent is not None or not chosen:
        seed = sent if sent is not None else random.SystemRandom().randrange(2**32)
        config.option.hypothesis_seed = str(seed)
        core.global_force_seed = seed  # type: ignore[assignment]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send a worker the seed: it receives only the options of the command line."""
    node.workerinput[_SEED] = core.global_force_seed
