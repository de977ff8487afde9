"""Finding a subject by what the user typed: a built-in name, an entry point, or ``module:attribute``.

    load_implementation("torch")                            the built-in
    load_backend("my_vendor.conformance:backend")           a vendor's module

A vendor's package may name its values in the entry-point groups ``fsdp_conformance.implementations`` and
``fsdp_conformance.backends``; they then load by their short names.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TypeVar

from harness.vendor import Backend, Feature, Implementation, lacking

Value = TypeVar("Value", Implementation, Backend)

BUILT_IN = {
    Implementation: {
        "torch": "harness.torch_fsdp2:implementation",
        "reference": "reference_models.subject:implementation",
    },
    Backend: {"gloo": "harness.backends:gloo", "nccl": "harness.backends:nccl", "auto": "harness.backends:automatic"},
}
GROUPS = {Implementation: "fsdp_conformance.implementations", Backend: "fsdp_conformance.backends"}


@dataclass(frozen=True)
class Subject:
    """Who is judged and where, by the names they load under, so that it can travel to rank processes."""

    implementation: str = "torch"
    backend: str = "auto"

    @property
    def modules(self) -> list[str]:
        """The names of the modules that define them."""
        implementation = _target(self.implementation, Implementation, "implementation")
        return [implementation[0], _target(self.backend, Backend, "backend")[0]]


def load_implementation(spec: str) -> Implementation:
    """The implementation that ``spec`` names. Raises ValueError that says what is wrong with it and what to do."""
    implementation = _load(spec, Implementation)
    for feature in sorted(implementation.claims):
        needed = lacking(implementation, Feature(feature))
        if needed is not None:
            raise ValueError(
                f"implementation {implementation.name!r} claims {str(feature)!r} but gives no {needed!r}: "
                "set it, or drop the claim and give a reason in not_claimed"
            )
    both = sorted(str(f) for f in implementation.claims & set(implementation.not_claimed))
    if both:
        raise ValueError(
            f"implementation {implementation.name!r} both claims and disclaims {', '.join(both)}: decide for one"
        )
    return implementation


def load_backend(spec: str) -> Backend:
    """The backend that ``spec`` names. Raises ValueError that says what is wrong with it and what to do."""
    backend = _load(spec, Backend)
    if backend.start_method not in ("forkserver", "spawn"):
        raise ValueError(
            f"backend {backend.name!r}: start_method must be 'forkserver' or 'spawn', got {backend.start_method!r}"
        )
    if backend.ranks < 0 or backend.thread_ranks < 0:
        raise ValueError(f"backend {backend.name!r}: ranks and thread_ranks must not be negative")
    return backend


def _load(spec: str, kind: type[Value]) -> Value:
    word = kind.__name__.lower()
    module_name, attribute = _target(spec, kind, word)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{word} {spec!r}: cannot import {module_name!r} ({error}); is it installed here?") from error
    except Exception as error:
        raise ValueError(
            f"{word} {spec!r}: importing {module_name!r} failed with {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, attribute):
        raise ValueError(f"{word} {spec!r}: module {module_name!r} has no {attribute!r}; define it or name another")
    value = getattr(module, attribute)
    if not isinstance(value, kind):
        raise ValueError(
            f"{word} {spec!r}: expected a harness.vendor.{kind.__name__}, got {type(value).__name__}; "
            f"build one with {kind.__name__}(name=…)"
        )
    return value


def _target(spec: str, kind: type[Value], word: str) -> tuple[str, str]:
    known = dict(BUILT_IN[kind])
    if spec not in known and ":" not in spec:  # looking through what is installed takes 10 ms, in every rank
        known = {**{e.name: e.value for e in entry_points(group=GROUPS[kind])}, **known}
    target = known.get(spec, spec)
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"unknown {word} {spec!r}: expected one of {', '.join(sorted(known))}, or module:attribute")
    return module_name, attribute
