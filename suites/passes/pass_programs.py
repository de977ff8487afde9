"""What runs on ranks for ``passes.py``: a sharded net on a route."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor.placement_types import Shard

from harness.trial import Trial
from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.oracle import judging
from suites.oracle.sharded import Resting, State, played_on
from suites.passes.passes import Pass, Route, Walk, expected


class Walking(Resting):
    """The net of a route, on one rank."""

    def __init__(self, rank: Rank, case: TrainingCase, route: Route, **options: Any) -> None:
        common = {"mesh": rank.mesh(), "reshard_after_forward": case.reshard_after_forward}
        super().__init__(rank, Walk.of(case, route), **common, **options)

    def made(self) -> Any:
        """The net, sharded as the route has it."""
        net, route, subject = self.case.build_in(None).to(self.rank.device), self.case.route, self.rank.implementation
        for block in list(net.blocks)[: route.recomputed]:
            subject.checkpoint(block)
        if route.dim:
            self.options["shard_placement_fn"] = lambda parameter: Shard(route.dim)
        route.spread(subject, self.case.case, net, **self.options)
        return net

    def walk(self, place: str) -> State:
        """Have the body go on, or begin."""
        if place == "first":
            self.body = self.case.route.body(Pass(self.net, self.case.case, self.batches, self.rank.number))
            self.batches += 1
        found: State = next(self.body)
        return found


def walk(rank: Rank, case: TrainingCase, route: Route) -> list[State]:
    """Shard the route's net, and take its steps; what each action gave."""
    return played_on(Walking(rank, case, route))


def follows(trial: Trial, case: TrainingCase, route: Route) -> None:
    """Walk a route on ranks, and compare with the unsharded model, action by action."""
    judging.follows(trial, walk, expected(case, route), case, route)
