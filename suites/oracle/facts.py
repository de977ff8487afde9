"""What a sharded parameter says of itself."""

from __future__ import annotations

from typing import Any

from harness.vendor import Feature
from harness.vendor.bounds import claims

#: What is compared of any; all is of DTensors whose rows lie as torch lays them out. Elsewhere a rank may have no part
#: of a parameter, and so no gradient of it; whole gradients are compared with their dtypes.
_OF_ANY = ("requires_grad", "dtype")


def facts(parameter: Any) -> dict[str, Any]:
    """What a sharded parameter says of itself, and in which dtypes it and its gradient are; a plain one has no mesh."""
    mesh = getattr(parameter, "device_mesh", None)
    lies = {
        "shape": lambda: list(parameter.shape),
        "stride": lambda: list(parameter.stride()),
        "placements": lambda: [placement_words(each) for each in getattr(parameter, "placements", ())],
        "mesh": lambda: None if mesh is None else list(mesh.shape),
        "device": lambda: parameter.device.type,
        "requires_grad": lambda: parameter.requires_grad,
        "dtype": lambda: str(parameter.dtype),
        "gradient": lambda: None if parameter.grad is None else str(parameter.grad.dtype),
    }
    return {name: fact() for name, fact in compared(lies).items()}


def compared(facts: dict[str, Any]) -> dict[str, Any]:
    """Those facts that are compared of what is judged."""
    if claims() >= {Feature.DTENSORS, Feature.ROW_LAYOUT}:
        return facts
    return {name: fact for name, fact in facts.items() if name in _OF_ANY}


def placement_words(placement: Any) -> str:
    """``"Shard(0)"`` for whatever cuts dim 0, strided or not; ``"Replicate()"``; else what it calls itself."""
    if placement.is_replicate():
        return "Replicate()"
    dim = getattr(placement, "dim", None)
    return repr(placement) if dim is None else f"Shard({dim})"
