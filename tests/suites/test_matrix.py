"""The matrix of state has every cell: what the full profile is said to try it tries, and cases of it can be built."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from suites.kit.strategies import MOST
from suites.saving import test_state_matrix as chapter
from suites.saving.chains import CheckpointCase
from suites.saving.checkpoint_strategies import FAMILIES, cells, every_case, layouts_of

GROUPS = ("shards", "replicas of shards", "tensor parallel", "replicas", "mixed")
CASES = [(group, trained) for group in GROUPS for trained in (False, True)]


def families(case: CheckpointCase) -> set[tuple[str, int, str, int]]:
    """Every pair of a case: the layout that saves, the one that loads, and their numbers of ranks."""
    named = {
        layout: family for family in FAMILIES for size in range(1, MOST + 1) for layout in layouts_of(family, size)
    }
    return {(named[a], a.ranks, named[b], b.ranks) for a in case.savers for b in case.loaders}


def test_the_groups_together_have_every_pair_of_kinds_and_sizes() -> None:
    """Whatever saves on one to four ranks is loaded by whatever there is on one to four ranks, in one of the groups."""
    there = [(f, size) for f in FAMILIES for size in range(1, MOST + 1) if layouts_of(f, size)]
    wanted = {(*a, *b) for a, b in product(there, there)}
    assert len(wanted) == (4 + 3 + 3 + 4 + 1) ** 2
    for trained in (False, True):
        assert {pair for group in GROUPS for case in every_case(group, trained) for pair in families(case)} == wanted


@pytest.mark.parametrize(("group", "trained"), CASES)
def test_a_full_profile_tries_every_cell(group: str, trained: bool) -> None:
    """No group has more cells than the full profile draws cases, and each cell has its own case."""
    cases = every_case(group, trained)
    assert len(set(cases)) == len(cases) == len(cells(group)) <= 60


@pytest.mark.parametrize(("group", "trained"), CASES)
def test_the_cases_of_cells_are_such_as_ranks_can_hold(group: str, trained: bool) -> None:
    """Tensor parallelism leaves no rank without rows; what is trained it divides, and plain replicas use all."""
    for case in every_case(group, trained):
        hidden = case.net.widths[1]
        for layout in (*case.savers, *case.loaders):
            assert hidden % layout.tp == 0 if trained else -(-hidden // layout.tp) * (layout.tp - 1) < hidden
            assert not (trained and layout.kind == "replicate" and case.net.unused)


@pytest.mark.parametrize(("ranks", "cases"), [(2, chapter.ALL_PAIRS[:2]), (4, chapter.ALL_PAIRS)])
def test_all_pairs_of_kinds_are_walked_in_every_profile(ranks: int, cases: Sequence[CheckpointCase]) -> None:
    """The last fixed case of ``state-matrix/all-pairs`` that fits has each kind of layout on both sides."""
    assert [case for case in chapter.ALL_PAIRS if case.world_size <= ranks] == list(cases)
    kinds = [{layout.kind.removesuffix("-fsdp") for layout in side} for side in (cases[-1].savers, cases[-1].loaders)]
    assert kinds == [set(FAMILIES), set(FAMILIES)]
    assert len(cases[-1].pairs()) == 25


def test_every_checkpoint_of_a_case_has_values_of_its_own() -> None:
    """What is loaded from one checkpoint is not what the one before left in the net."""
    seeds = [seed for place in range(5) for seed in (chapter.FROM_FOUR.here(place).seed + more for more in (0, 1))]
    assert len(set(seeds)) == len(seeds)
