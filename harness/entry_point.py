"""What pytest loads wherever this project is installed: the plugin itself only for who names a model to be judged.

``pytest --model my_package.conformance:net``, or a line ``model = …`` in the ini file, loads ``harness.pytest_plugin``.
All other runs see nothing of it: no options, no profile of Hypothesis, no torch; requirements are deselected.
"""

from __future__ import annotations

import pytest

_PLUGIN = "harness.pytest_plugin"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The line of the ini file, which the plugin has as well."""
    parser.addini("model", "your own model to judge: module:function", default="")


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the plugin, which a ``conftest.py`` may have load too, if there is a model."""
    if early_config.getini("model") or any(word.partition("=")[0] == "--model" for word in args):
        early_config.pluginmanager.import_plugin(_PLUGIN)


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
