"""Imports: torch with what loads itself, the backend's module and plugins, the implementation.

Each may raise, hang, or end the process; the last is for the supervisor to see.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from harness.doctor.probes.answer import NotTried, Wrong, last_line

if TYPE_CHECKING:
    from harness.vendor.api import Backend

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


class BadOption(Exception):
    """What was asked for cannot be: the command line is wrong, and not a backend."""


def torch_itself() -> str:
    """Import torch, as every program of a user does."""
    names = sorted(entry.name for entry in entry_points(group="torch.backends"))
    if os.environ.get(AUTOLOAD, "1") != "1":
        raise NotTried(f"{AUTOLOAD}={os.environ[AUTOLOAD]} is set")
    began = time.monotonic()
    importlib.import_module("torch")
    loaded = f"loads {', '.join(names)}" if names else "nothing loads itself here"
    return f"{loaded}, {time.monotonic() - began:.1f} s"


def backend(name: str, implementation: str) -> Backend:
    """The ``Backend`` of that name, with its plugins imported. Raises BadOption if there can be none."""
    importlib.import_module("torch")  # what fails here is no matter of the name
    load = importlib.import_module("harness.vendor.load")
    try:
        module = load.Subject(implementation, name).modules[1]
    except ValueError as error:
        raise BadOption(str(error)) from None
    found: Backend = _loaded(load.load_backend, module, name)
    os.environ.update(found.environment)
    for plugin in found.imports:
        importlib.import_module(plugin)
    return found


def implementation(name: str) -> str:
    """The implementation of that name can be loaded."""
    load = importlib.import_module("harness.vendor.load")
    found = _loaded(load.load_implementation, load.Subject(name, "gloo").modules[0], name)
    return f"{found.name}, {len(found.claims)} features claimed"


def _loaded(load: Callable[[str], Any], module: str, name: str) -> Any:
    """``load(name)``; first its module by itself, so that what that raises is seen and not retold."""
    _import_named(module, name)
    attribute = name.rpartition(":")[2]
    if ":" in name and not hasattr(sys.modules[module], attribute):
        raise BadOption(f"{name!r}: module {module!r} has no {attribute!r}; define it or name another")
    try:
        return load(name)
    except ValueError as error:
        raise Wrong(str(error)) from None


def _import_named(module: str, name: str) -> None:
    """A module that is nowhere was mistyped, or is not installed; one that is there and fails is a finding."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and within(module, error.name):
            raise BadOption(f"{name!r}: no module {error.name!r}; is it installed here, or misspelt?") from None
        raise
    except (TypeError, ValueError) as error:
        if module not in sys.modules and not module.strip(".").replace(".", "_").isidentifier():
            raise BadOption(f"{name!r} names no module: {last_line(error)}") from None
        raise


def within(module: str, package: str) -> bool:
    """Whether a dotted name is a package or inside it."""
    return module == package or module.startswith(f"{package}.")
