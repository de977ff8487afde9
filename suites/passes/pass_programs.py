"""What runs on ranks for ``passes.py``: a route is walked on a sharded net, and what it found comes back."""

from __future__ import annotations

from typing import Any

from harness.trial import Trial
from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.programs import gradients, parameters
from suites.passes.passes import Pass, Route, expected


def walk(rank: Rank, case: TrainingCase, route: Route, **options: Any) -> list[Any]:
    """Shard the route's net, and take its steps."""
    net: Any = route.build(case).to(rank.device)
    options.setdefault("reshard_after_forward", case.reshard_after_forward)
    route.spread(rank.implementation, case, net, mesh=rank.mesh(), **options)
    optimizer = route.optimizer(case, net)
    found = []
    for step in range(case.steps):
        p = Pass(net, case, step, rank.number, rank.implementation)
        points = [(facts, gradients(net)) for facts in route.body(p)]
        optimizer.step()
        optimizer.zero_grad()
        found.append({"points": points, "parameters": parameters(net)})
    return found


def follows(trial: Trial, case: TrainingCase, route: Route) -> None:
    """Walk a route on ranks, and compare with the unsharded model bit for bit."""
    want = expected(case, route)
    for number, got in enumerate(trial.run(walk, case, route)):
        trial.agree(f"rank {number}", got, want[number])
