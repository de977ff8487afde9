"""Which modules are sharded, in which order, and what each rank then holds. Imports no ``torch.distributed``."""

from __future__ import annotations

from torch import Tensor

from suites.interactions.bodies import BLOCKS
from suites.interactions.scenario import Scenario
from suites.kit.layout import shard


def plan(scenario: Scenario) -> list[tuple[str, ...]]:
    """The calls of ``fully_shard`` in their order, each with the modules that it is given; the root is ``""``."""
    first, middle, last = BLOCKS
    parts = [(f"{block}.{part}",) for block in BLOCKS for part in ("first", "second")]
    below: dict[str, list[tuple[str, ...]]] = {
        "root": [],
        "list": [(first, middle), (last,)],
        "shared": [(first,), (middle,)],
        "parts": [*parts, (first,), (middle,), (last,)],
    }
    return [*below.get(scenario.wrapping, [(first,), (middle,), (last,)]), ("",)]


class Layout:
    """What each rank holds of whole tensors, and what a sharded tensor says of itself."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def dim(self, shape: tuple[int, ...]) -> int:
        """The dim along which a parameter is cut: the second, where it is asked for and even, else the first."""
        columns = self.scenario.rows == "columns" and len(shape) > 1 and 0 not in shape
        columns = columns and shape[1] % self.scenario.shards == 0
        return 1 if columns else 0

    def part(self, rank: int, full: Tensor) -> Tensor:
        """A rank's part of a parameter, of its gradient, or of what an optimizer keeps of it."""
        return shard(full, self.scenario.shards, rank % self.scenario.shards, self.dim(tuple(full.shape))).contiguous()

    def facts(self, full: Tensor, trains: bool) -> dict[str, object]:
        """What a sharded parameter says of itself on every rank."""
        placements = [f"Shard({self.dim(tuple(full.shape))})"]
        return {
            "shape": list(full.shape),
            "stride": list(full.stride()),
            "placements": [*["Replicate()"] * (len(self.scenario.axes) - 1), *placements],
            "mesh": list(self.scenario.axes),
            "requires_grad": trains,
        }
