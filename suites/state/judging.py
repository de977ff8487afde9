"""Comparing what ranks show of state dicts with the unsharded nets' own."""

from __future__ import annotations

from typing import Any

import torch

from harness.trial import Trial
from suites.generated.net_cases import GeneratedCase
from suites.kit.cases import TrainingCase
from suites.oracle.judging import finds
from suites.state import state_dicts
from suites.state.state_dicts import Asked, expected, other

LOAD = ("allocate", "give")


def enters(trial: Trial, case: TrainingCase, *acts: str, looks: Any = ("entries",), kind: type[Asked] = Asked) -> None:
    """Require, after these acts, the rank's rows of the net, or of the other one if that was loaded."""
    loads = "give" in acts
    net = other(case) if loads else case.build()
    for number, got in enumerate(trial.run(kind.seen, case, acts, *looks)):
        want = expected(case, number, net)
        for look in looks:
            trial.agree(f"rank {number}, {look}", got[look], dict(sorted(want.items())) if look == "tensors" else want)
        if loads:
            wrong = got["found"]["do not fit"]
            trial.holds(not wrong, f"rank {number}: do not fit: {wrong}")


def keeps_memory(trial: Trial, case: TrainingCase) -> None:
    """Require that loading moves no shard of what is cut evenly."""
    cut = {name: {case.part(rank, name, p).shape for rank in range(case.world_size)} for name, p in case.full().items()}
    for number, got in enumerate(trial.run(Asked.seen, case, LOAD)):
        moved = [name for name in got["found"]["moved"] if len(cut.get(name, ())) == 1]
        trial.holds(not moved, f"rank {number}: loading should write into the shards there are, but it moved {moved}")


def loads_in_parts(trial: Trial, case: TrainingCase, pin: bool | None) -> None:
    """Require outputs and entries of the other net, with CPU offload all on the CPU."""
    for number, got in enumerate(trial.run(state_dicts.assembled, case, pin)):
        trial.agree(f"rank {number}", got["found"], outputs(case, number))
        trial.agree(f"rank {number}", got["entries"], expected(case, number, other(case)))
        if pin is not None:
            trial.agree(f"rank {number}, devices", got["devices"], dict.fromkeys(got["devices"], "cpu"))


def outputs(case: TrainingCase, number: int, batch: int = 0) -> dict[str, Any]:
    """What the unsharded other net gives for a rank's batch."""
    with torch.no_grad():
        return {"outputs": [other(case)(case.inputs(batch, number))]}


def is_full_on_rank_zero(trial: Trial, case: GeneratedCase) -> None:
    """Require the unsharded net's own state dict on rank 0's CPU, and nothing on other ranks."""
    state = {name: state_dicts.entry(value.to("cpu")) for name, value in case.build().state_dict().items()}
    finds(trial, state_dicts.full_on_rank_zero, case, lambda number: {} if number else state)
