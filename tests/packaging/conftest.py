"""The wheel and an environment, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.environments import Environment, wheel_of_the_checkout


@pytest.fixture(scope="package")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return wheel_of_the_checkout(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """The wheel, and what it needs, installed."""
    return Environment(tmp_path_factory.mktemp("home"), wheel)
