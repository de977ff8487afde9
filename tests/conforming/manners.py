"""Implementations that look different from outside: other messages, classes, containers and claims."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.vendor import CORE, Feature, Implementation
from tests.conforming.making import disclaiming, reference, torch, variant
from tests.conforming.noticing import noticed


def collects_garbage(module: Any, options: Any) -> None:
    """Collects young garbage before and after every forward. Right: nothing that is reachable is garbage."""

    def collect(*_: Any) -> None:
        noticed("collects garbage")
        gc.collect(0)

    module.register_forward_pre_hook(collect)
    module.register_forward_hook(collect)


def in_own_words(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose errors are subclasses of the usual ones and say more."""

    @functools.wraps(call)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except (ValueError, TypeError, AssertionError, NotImplementedError, RuntimeError) as error:
            noticed("raises errors of its own")
            kind = type(f"Sharding{type(error).__name__}", (type(error),), {})
            raise kind(f"[sharding/17] {error} — see chapter 4 of the manual") from error

    return wrapped


def raises_in_own_words(module: Any, options: Any) -> None:
    """Raises subclasses of the right errors, with more words around. Right: handlers of the class catch it."""
    for name in dir(torch.module_class):
        if name.startswith("set_"):
            setattr(module, name, in_own_words(getattr(module, name)))


def has_its_own_class(module: Any, options: Any) -> None:
    """Gives each module a class of its own, with a name of its own. Right: it is an FSDPModule and what it was."""
    noticed("has classes of its own")
    cls = type(module)
    module.__class__ = type(f"Zerlegt_{cls.__name__}", cls.__bases__, {"__deepcopy__": cls.__deepcopy__})


def gives_plain_dicts(module: Any, options: Any) -> None:
    """Its state dict is a dict and no OrderedDict. Right: dicts are ordered, and load as well."""
    right = module.state_dict

    def state_dict(*args: Any, **more: Any) -> Any:
        found = right(*args, **more)
        if args or more.get("destination") is not None:
            return found  # a part of another test's
        noticed("gives plain dicts")
        return dict(found)

    module.state_dict = state_dict


def _with_own_errors(base: Implementation) -> Implementation:
    made = variant("raises errors of its own", base, after=raises_in_own_words)
    assert made.fully_shard is not None
    return replace(made, fully_shard=in_own_words(made.fully_shard))


def _of_few_words() -> Implementation:
    """The reference under an unusual name, which claims little. Right: claims are optional."""
    kept = CORE | {Feature.HSDP, Feature.ACCUMULATION}
    reasons = {feature: f"«{feature}» <b>nicht</b> hier | 尚未支持 & \n" * 3 for feature in set(Feature) - kept}
    shy = disclaiming(reference, reasons)
    return replace(shy, name="Шардер-分片 🧩 <i>|\\ " * 15, version="0.0.0-α+" + "x" * 200)


collects = variant("collects garbage", torch, after=collects_garbage)
own_errors = _with_own_errors(torch)
own_classes = variant("has classes of its own", torch, after=has_its_own_class)
plain_dicts = variant("gives plain dicts", reference, after=gives_plain_dicts)
claims_little = _of_few_words()
