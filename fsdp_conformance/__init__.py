"""The one import that stays as it is for vendors: all names of ``harness.vendor``, loaded when first asked for.

    from fsdp_conformance import CORE, Backend, Feature, Implementation

pytest imports this package wherever the project is installed, so it imports nothing until then. (PYTEST_DONT_REWRITE:
our commands have imported it before pytest could.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.vendor import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """A name of ``harness.vendor``. Raises ImportError if another package stands in the place of ours."""
    if name.startswith("_"):  # Python and pytest ask modules for such names
        raise AttributeError(name)
    from fsdp_conformance.installed import intruder

    if why := intruder():
        raise ImportError(why)
    import harness.vendor

    return getattr(harness.vendor, name)
