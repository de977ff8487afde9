"""Which of our functions has been applied to which module: each at most once, and never two that exclude each other.

Kept in each module's ``__dict__``, so that it goes with the module: a table of modules beside them, even a weak one,
would keep every module alive that its own state speaks of::

    net.0    {"checkpoint": {…}, "fully_shard": state 1}
    net.1    {"fully_shard": state 1}                       one call on the list [net.0, net.1]: one state
    net.2    {"replicate": state 2}                         fully_shard(net.2) is refused from now on
    net      {}                                             free for either
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from reference_models.fsdp.errors import NotAllowed

_KEY = "_composed"
#: These take over a module's parameters: at most one of them on one module.
_EXCLUSIVE = ("fully_shard", "replicate")


def state_of(module: nn.Module, *functions: str) -> Any:
    """What the first of ``functions`` that has been applied to ``module`` keeps of it; None if none has."""
    there = module.__dict__.get(_KEY, {})
    for function in functions:
        if function in there:
            return there[function]
    return None


def check_free(modules: Iterable[nn.Module], function: str) -> None:
    """Raise NotAllowed for a function that has been applied before, RuntimeError for two that exclude each other."""
    for module in modules:
        there = module.__dict__.get(_KEY, {})
        if function in there:
            raise NotAllowed(
                f"{function} expects a module once, and this {type(module).__name__} was given to it before: "
                "leave out one of the calls"
            )
        other = next((name for name in there if name != function and {name, function} <= set(_EXCLUSIVE)), None)
        if other is not None:
            raise RuntimeError(f"{function} and {other} exclude each other on one module: choose one of them")


def claim(modules: Iterable[nn.Module], function: str, state: Any) -> None:
    """Note that ``function`` is applied to the modules, with its state."""
    for module in modules:
        module.__dict__.setdefault(_KEY, {})[function] = state
