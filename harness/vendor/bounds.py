"""The bounds of what is asked of an implementation: its claims.

A program that shards a list of modules, on ranks whose implementation claims no lists, ends with ``NotClaimed`` on all
of them; its case is then left out, as one for too many ranks is. Where lists are claimed, it is noted that it asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar
from weakref import WeakSet

from harness.vendor.api import Implementation, full_tensor
from harness.vendor.features import NEEDS_METHOD, Feature

Bounded = TypeVar("Bounded", bound=Implementation)
#: What this process judges; None where nothing bounds what is asked.
_judged: Implementation | None = None
#: On which type of device it runs.
_device_type = "cpu"
#: What this process was asked for since that was last noted.
_asked: set[Feature] = set()
#: How ranks put tensors together; where there are none, all tensors are whole.
_together: Callable[[Any, Any], Any] | None = full_tensor
#: Methods that come with others.
_ALIKE = {"reshard": "unshard", "set_reshard_after_forward": "unshard", "set_reshard_after_backward": "unshard"}


class NotClaimed(BaseException):
    """A program has asked for a feature that is not claimed. No ``Exception``: who expects one lets this pass."""

    def __init__(self, feature: Feature) -> None:
        super().__init__(f"asks for what is not claimed: {feature}")
        self.feature = feature


def set_judged(implementation: Implementation | None, on: str = "cpu") -> tuple[Implementation | None, str]:
    """Let this process judge an implementation on such devices from now on; what it judged before."""
    global _judged, _device_type
    before = _judged, _device_type
    _judged, _device_type = implementation, on
    return before


def claims() -> frozenset[Feature]:
    """What is claimed by the implementation that is judged."""
    return frozenset(Feature) if _judged is None else _judged.claims


def asked() -> list[str]:
    """The features that programs in this process have asked for since the last call, by name."""
    names = sorted(map(str, _asked))
    _asked.clear()
    return names


def asks_for(feature: Feature) -> None:
    """Note that the feature is asked for; raise NotClaimed unless it is claimed."""
    _asked.add(feature)
    if feature not in claims():
        raise NotClaimed(feature)


def asks_for_method(name: str) -> None:
    """Raise NotClaimed unless the feature is claimed that a method of sharded modules is about."""
    wanted = _ALIKE.get(name, name)
    for feature in (feature for feature, method in NEEDS_METHOD.items() if method == wanted):
        asks_for(feature)


def whole(tensor: Any, parameter: Any) -> Any:
    """All of a sharded tensor, as the implementation that is judged puts it together; collective.

    The rank's part, where parts are to be laid end to end.
    ``parameter`` is itself, or the parameter that it is the gradient or the optimizer's state of.
    """
    return tensor if _together is None else _together(tensor, parameter)


def averages() -> bool:
    """Whether gradients are averages over ranks, and not sums."""
    return _judged is None or not _judged.sums_gradients


def device_type() -> str:
    """On which type of device the ranks are."""
    return _device_type


def within_claims(implementation: Bounded, ranks: int) -> Bounded:
    """The same, judged from now on in this process by programs on so many ranks.

    Its functions note what they are asked for, and raise NotClaimed where that goes beyond its claims.
    """
    global _together
    set_judged(implementation, _device_type)
    _together = implementation.whole
    shard, policy = implementation.fully_shard, implementation.mixed_precision_policy
    replicate, as_shards = implementation.replicate, implementation.replicate_fsdp
    return replace(
        implementation,
        fully_shard=shard and _bounded_sharding(shard, ranks, WeakSet()),
        replicate=replicate and _bounded_replicating(replicate),
        replicate_fsdp=as_shards and _bounded_replicating(as_shards),
        mixed_precision_policy=policy and partial(_policy, policy),
    )


def _bounded_sharding(shard: Callable[..., Any], ranks: int, done: WeakSet[Any]) -> Callable[..., Any]:
    """``fully_shard`` with a look at what it is given; ``done`` are the modules that it has sharded."""

    @wraps(shard)
    def bounded(module: Any, **options: Any) -> Any:
        if isinstance(module, (list, tuple)):
            asks_for(Feature.MODULE_LISTS)
        listed = module if isinstance(module, (list, tuple)) else [module]
        modules = [each for each in listed if hasattr(each, "children")]  # what is refused may be anything
        given = [p for each in modules for p in _whole_parameters(each, done)]
        if _has_uneven_rows(given, ranks, **options):
            asks_for(Feature.UNEVEN_ROWS)
        _asks_for_dtypes(modules)
        done.update(modules)
        return shard(module, **options)

    return bounded


def _bounded_replicating(replicate: Callable[..., Any]) -> Callable[..., Any]:
    """``replicate`` with a look at the dtypes that it is given."""

    @wraps(replicate)
    def bounded(module: Any, *args: Any, **options: Any) -> Any:
        _asks_for_dtypes([module] if hasattr(module, "children") else [])
        return replicate(module, *args, **options)

    return bounded


def _asks_for_dtypes(modules: Iterable[Any]) -> None:
    if any(str(p.dtype) != "torch.float32" for each in modules for p in each.parameters()):
        asks_for(Feature.OTHER_DTYPES)


def _has_uneven_rows(
    parameters: Iterable[Any], ranks: int, mesh: Any = None, shard_placement_fn: Any = None, **_: Any
) -> bool:
    """Whether ranks do not divide the rows of a parameter; other dims are never cut unevenly."""
    parts = mesh.size(mesh.ndim - 1) if hasattr(mesh, "ndim") else ranks
    return shard_placement_fn is None and any(p.dim() and p.size(0) % parts for p in parameters)


def _whole_parameters(module: Any, done: WeakSet[Any]) -> Iterator[Any]:
    """Those of a module that are not sharded yet, nor over any other axis."""
    if module not in done:
        yield from (p for p in module.parameters(recurse=False) if not hasattr(p, "to_local"))
        for child in module.children():
            yield from _whole_parameters(child, done)


def _policy(make: Callable[..., Any], **dtypes: Any) -> Any:
    if dtypes.get("output_dtype") is not None:
        asks_for(Feature.OUTPUT_DTYPE)
    if dtypes.get("param_dtype_override_fn") is not None:
        asks_for(Feature.DTYPE_OVERRIDE)
    if dtypes.get("param_dtype") is not None and dtypes.get("cast_forward_inputs", True):
        asks_for(Feature.INPUT_CASTING)
    return make(**dtypes)
