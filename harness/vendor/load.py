"""Finding a subject by what the user typed: a built-in name, an entry point, or ``module:attribute``.

    load_implementation("torch")                            the built-in
    load_backend("my_vendor.conformance:backend")           a vendor's module

A vendor's package may name its values in the entry-point groups ``fsdp_conformance.implementations`` and
``fsdp_conformance.backends``; they then load by their short names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import Any, TypeVar

from harness.data.text import one_line
from harness.data.type_checks import misfit
from harness.vendor.api import Backend, Implementation
from harness.vendor.features import Feature, lacking

Value = TypeVar("Value", Implementation, Backend)

BUILT_IN = {
    Implementation: {
        "torch": "harness.vendor.torch_fsdp2:implementation",
        "reference": "reference_models.subject:implementation",
    },
    Backend: {
        "gloo": "harness.vendor.backends:gloo",
        "nccl": "harness.vendor.accelerators:nccl",
        "simulated": "harness.simulated.backend:backend",
        "auto": "harness.vendor.accelerators:automatic",
    },
}
GROUPS = {Implementation: "fsdp_conformance.implementations", Backend: "fsdp_conformance.backends"}


@dataclass(frozen=True)
class Subject:
    """Who is judged and where, by the names they load under, so that it can travel to rank processes.

    ``model`` is the factory of the user's own model, as ``module:function``, if that is what is judged.
    """

    implementation: str = "torch"
    backend: str = "auto"
    model: str = ""

    @property
    def modules(self) -> list[str]:
        """The names of the modules that define them."""
        named = [target(self.implementation, Implementation)[0], target(self.backend, Backend)[0]]
        return [*named, factory_target(self.model)[0]] if self.model else named


def load_implementation(spec: str) -> Implementation:
    """The implementation that ``spec`` names. Raises ValueError that says what is wrong with it and what to do."""
    implementation = _load(spec, Implementation)
    for feature in sorted(implementation.claims):
        needed = lacking(implementation, Feature(feature))
        if needed is not None:
            raise _refusal(
                f"implementation {implementation.name!r} claims {str(feature)!r} but gives no {needed!r}: "
                "set it, or drop the claim and give a reason in not_claimed"
            )
    both = sorted(str(f) for f in implementation.claims & set(implementation.not_claimed))
    if both:
        raise _refusal(
            f"implementation {implementation.name!r} both claims and disclaims {', '.join(both)}: decide for one"
        )
    return implementation


def load_backend(spec: str) -> Backend:
    """The backend that ``spec`` names. Raises ValueError that says what is wrong with it and what to do."""
    backend = _load(spec, Backend)
    if backend.start_method not in ("forkserver", "spawn"):
        raise _refusal(
            f"backend {backend.name!r}: start_method must be 'forkserver' or 'spawn', got {backend.start_method!r}"
        )
    if backend.ranks < 0 or backend.thread_ranks < 0:
        raise _refusal(f"backend {backend.name!r}: ranks and thread_ranks must not be negative")
    if backend.visible_devices in backend.environment:
        raise _refusal(
            f"backend {backend.name!r}: environment sets {backend.visible_devices}, by which workers lease devices: "
            "set it for the whole run instead, or leave visible_devices empty"
        )
    return backend


def load_factory(spec: str) -> Callable[[], Any]:
    """The function that makes the model ``spec``. Raises ValueError that says what is wrong with it and what to do."""
    factory = _imported(*factory_target(spec), f"model {spec!r}")
    if not callable(factory):
        raise _refusal(f"model {spec!r}: expected a function that returns (net, inputs), got {type(factory).__name__}")
    made: Callable[[], Any] = factory
    return made


def factory_target(spec: str) -> tuple[str, str]:
    """The module and the function that the name of a model's factory has. Raises ValueError if it has not both."""
    module_name, colon, function = spec.partition(":")
    if not (module_name and colon and function):
        raise _refusal(f"model {spec!r}: expected module:function, such as my_package.conformance:net")
    return module_name, function


def _refusal(words: str) -> ValueError:
    """What is wrong with a subject, in one line whatever its names and errors hold."""
    return ValueError(one_line(words))


def _load(spec: str, kind: type[Value]) -> Value:
    word = kind.__name__.lower()
    module_name, attribute = target(spec, kind)
    value = _imported(module_name, attribute, f"{word} {spec!r}")
    if not isinstance(value, kind):
        raise _refusal(
            f"{word} {spec!r}: expected a fsdp_conformance.{kind.__name__}, got {type(value).__name__}; "
            f"build one with {kind.__name__}(name=…)"
        )
    wrong = misfit(value)
    if wrong:
        wanted = next(field.type for field in fields(value) if field.name == wrong)
        raise _refusal(f"{word} {spec!r}: {wrong} must be {wanted}, got {getattr(value, wrong)!r:.80}")
    return value


def _imported(module_name: str, attribute: str, where: str) -> Any:
    """The attribute. Anything that a module raises when it is imported, even ``sys.exit``, becomes one line."""
    try:
        module = importlib.import_module(module_name)
        return getattr(module, attribute)
    except ModuleNotFoundError as error:
        why = f"cannot import {module_name!r} ({error}); is it installed here?"
    except AttributeError as error:
        if module_name in sys.modules:
            why = f"module {module_name!r} has no {attribute!r}; define it or name another"
        else:
            why = f"importing {module_name!r} failed with AttributeError: {error}"
    except (Exception, SystemExit) as error:
        why = f"importing {module_name!r} failed with {type(error).__name__}: {error}"
    raise _refusal(f"{where}: {why}")


def target(spec: str, kind: type[Value]) -> tuple[str, str]:
    """The module and the attribute that ``spec`` names. Raises ValueError for a name that is not known here."""
    known = dict(BUILT_IN[kind])
    if spec not in known and ":" not in spec:  # looking through what is installed takes 10 ms, in every rank
        known = {**{e.name: e.value for e in entry_points(group=GROUPS[kind])}, **known}
    target = known.get(spec, spec)
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        word = kind.__name__.lower()
        raise _refusal(f"unknown {word} {spec!r}: expected one of {', '.join(sorted(known))}, or module:attribute")
    return module_name, attribute
