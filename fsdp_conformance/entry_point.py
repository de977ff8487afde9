"""What pytest loads wherever this project is installed: the plugin itself only for who asks for requirements.

    pytest --pyargs suites.training          the suites, by name; or by path
    pytest --model my_package.conformance:net   a model of the user's; or a line ``model = …`` in the ini file

All other runs see nothing of it: no options, no profile of Hypothesis, no torch; requirements are deselected.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsdp_conformance.installed import ROOT, intruder, place_of

_PLUGIN = "harness.pytest_plugin"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The line of the ini file, which the plugin has as well."""
    parser.addini("model", "your own model to judge: module:function", default="")


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the plugin, which a ``conftest.py`` may have loaded too, if requirements are asked for.

    Modules of the current folder are found then, after all others: a line that reproduces a result may name one.
    """
    here = early_config.invocation_params.dir
    has_model = early_config.getini("model") or any(word.partition("=")[0] == "--model" for word in args)
    if not has_model and not _names_suites(args, here):
        return
    if why := intruder():
        raise pytest.UsageError(f"fsdp-conformance: {why}")
    if str(here) not in sys.path:
        sys.path.append(str(here))
    early_config.pluginmanager.import_plugin(_PLUGIN)


def _names_suites(args: Sequence[str], here: Path) -> bool:
    """Whether an argument is a place in our suites."""
    ours = ROOT / "suites"
    places = [word.partition("::")[0] for word in args]
    if "--pyargs" in args and any(place.partition(".")[0] == "suites" for place in places):
        return place_of("suites") == ours
    return any((here / place).resolve().is_relative_to(ours) for place in places if place[:1] not in ("-", ""))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without the plugin leave out what only it can run."""
    if config.pluginmanager.has_plugin(_PLUGIN):
        return
    if out := [item for item in items if item.get_closest_marker("requirement")]:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker: requirements may be collected without the plugin."""
    if not config.pluginmanager.has_plugin(_PLUGIN):
        config.addinivalue_line("markers", "requirement(…): a conformance requirement; --model has it judged")
