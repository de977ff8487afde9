"""What a sharded parameter says of itself."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement


def facts(parameter: Any) -> dict[str, Any]:
    """What a sharded parameter says of itself, and in which dtypes it and its gradient are."""
    if not isinstance(parameter, DTensor):
        return {"type": type(parameter).__name__}
    return {
        "shape": list(parameter.shape),
        "stride": list(parameter.stride()),
        "placements": [placement_words(each) for each in parameter.placements],
        "mesh": list(parameter.device_mesh.mesh.shape),
        "requires_grad": parameter.requires_grad,
        "dtype": str(parameter.dtype),
        "gradient": None if parameter.grad is None else str(parameter.grad.dtype),
    }


def placement_words(placement: Placement) -> str:
    """``"Shard(0)"`` for whatever cuts dim 0, strided or not; ``"Replicate()"``; else what it calls itself."""
    if placement.is_replicate():
        return "Replicate()"
    dim = getattr(placement, "dim", None)
    return repr(placement) if dim is None else f"Shard({dim})"
