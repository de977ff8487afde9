"""Where this project's packages are, and whether Python finds them there: others may have the same names.

A user's own ``harness/`` in the current folder, and a package of that name in a registry, are imported in place of ours
wherever they come first. So the current folder goes last, and whatever is in our place nevertheless is refused.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

#: The folder with all packages of this project: a checkout, or site-packages.
ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "reference_models", "suites")


def current_folder_last() -> None:
    """Have modules of the current folder found, but none in place of what is installed.

    ``python -m`` puts that folder first, and the script ``fsdp-conformance`` does not have it found at all.
    """
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        return
    if sys.path[:1] in ([""], [here]) and Path(here).resolve() != ROOT:
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)


def intruder() -> str:
    """Which package stands in the place of one of ours, and what to do, in a sentence; "" if none does."""
    for name in PACKAGES:
        place = place_of(name)
        if place == ROOT / name:
            continue
        expected = f"expected the package {name!r} of fsdp-conformance in {ROOT}"
        if place is None:
            return f"{expected}, found none: install it again"
        advice = f"run from another folder, take {place.parent} off PYTHONPATH, or rename that package"
        return f"{expected}, found {place}: {advice}"
    return ""


def place_of(name: str) -> Path | None:
    """The folder or file that ``import`` would take for a package, or has taken; None if there is none."""
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # imported, and without a spec
        found = None
    if found is None:
        return None
    folders = list(found.submodule_search_locations or [])
    return Path(folders[0] if folders else found.origin or name).resolve()
