"""Saving in some layouts, loading in others, and requiring of every pair what is right."""

from __future__ import annotations

from typing import Any

from harness.trial import Trial
from harness.worlds.base import Program
from suites.oracle.expected import Expected
from suites.oracle.situation import STEP
from suites.saving import checkpoint_programs as programs
from suites.saving.chains import CheckpointCase, NeverStopped
from suites.saving.checkpoint_strategies import directory
from suites.saving.resume_programs import resume, train_and_save


def moves(trial: Trial, case: CheckpointCase, save: Program = programs.save) -> list[Any]:
    """Save and load; require of every pair, on every rank, its part of what was saved, in the loading net's dtype.

    Gives what saving has given.
    """
    trial.needs(max(case.world_size, case.loaded.ranks))
    with directory() as path:
        given = trial.run(save, case, path)
        ranks = trial.run(programs.load, case, path, ranks=case.loaded.ranks)
    for number, found in enumerate(ranks):
        for pair, got in zip(case.pairs(), found, strict=True):
            trial.agree(f"rank {number}, {route(pair)}", got, pair.held(number))
    return given


def resumes(trial: Trial, case: CheckpointCase) -> None:
    """Train, save, load and step; require, of every pair, what the unsharded net has that never stopped.

    Its optimizer keeps nothing for what is unused; what another one keeps for it does not matter.
    """
    trial.needs(max(case.world_size, case.loaded.ranks))
    with directory() as path:
        trial.run(train_and_save, case, path)
        ranks = trial.run(resume, case, path, ranks=case.loaded.ranks)
    for place, pair in enumerate(case.pairs()):
        want = Expected(pair, NeverStopped)
        for number, found in enumerate(ranks):
            due = [want.on_rank(at, number) for at in range(-len(STEP[:-1]), 0)]
            kept = found[place][-1]["optimizer"]
            found[place][-1]["optimizer"] = {name: kept.get(name) for name in due[-1]["optimizer"]}
            trial.agree(f"rank {number}, {route(pair)}", found[place], due, within=want.within)


def route(pair: CheckpointCase) -> str:
    """Which pair it is."""
    return f"{pair.saved.words} to {pair.loaded.words}"
