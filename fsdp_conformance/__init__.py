"""The one import that stays as it is: all names of ``harness.vendor`` and ``harness.judge``, loaded when asked for.

    from fsdp_conformance import CORE, Backend, Feature, Implementation    # what a vendor writes
    from fsdp_conformance import judge, standing                           # to judge it from Python

pytest imports this package wherever the project is installed, so it imports nothing until then. (PYTEST_DONT_REWRITE:
our commands have imported it before pytest could.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.judge import Record, Run, Standing, Verdict, judge, standing  # noqa: F401
    from harness.vendor import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """A name of these modules. Raises ImportError if another package stands in the place of ours."""
    if name.startswith("_"):  # Python and pytest ask modules for such names
        raise AttributeError(name)
    from fsdp_conformance.installed import intruder

    if why := intruder():
        raise ImportError(why)
    import harness.judge
    import harness.vendor

    return getattr(harness.vendor if hasattr(harness.vendor, name) else harness.judge, name)
