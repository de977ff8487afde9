"""The published mutation results cover every mutant, and the page and the badge are made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import all_mutants
from tests.mutation.measure import ROOT
from tests.mutation.page import attributed, median_seconds
from tests.mutation.run import RESULTS, made_from, read

MUTANTS = {mutant.id: mutant for mutant in all_mutants()}
PUBLISHED = read(RESULTS)
MADE = made_from(PUBLISHED, list(MUTANTS.values()))
AGAIN = "run `python -m tests.mutants --missing`"
#: The most seconds that the requirement named for a mutant may take to fail, in the median.
SOON = 2.0


def test_every_mutant_is_measured() -> None:
    """The results have each mutant once, in order, in the world that shows it, and none that no longer exists."""
    expected = [(mutant.id, mutant.worlds[0]) for mutant in MUTANTS.values()]
    assert [(result.id, result.world) for result in PUBLISHED] == expected, AGAIN


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_made_from_the_results_is_fresh(path: Path) -> None:
    """The page and the badge are those of the published results."""
    assert path.read_text(encoding="utf-8") == MADE[path], "run `python -m tests.mutants --write`"


def test_every_mutant_is_killed_or_equivalent() -> None:
    """A mutant that survives, and is not declared equivalent, shows what the suites lack."""
    assert [one.id for one in PUBLISHED if not one.is_killed and not MUTANTS[one.id].why_equivalent] == []


def test_mutants_are_killed_soon_and_by_related_requirements() -> None:
    """At least 95% are first killed by a requirement of what they break, and half by the one named within 2 s."""
    assert sum(attributed(one, MUTANTS[one.id]) for one in PUBLISHED) >= 0.95 * len(PUBLISHED)
    assert median_seconds(PUBLISHED) <= SOON


def test_the_readme_shows_the_badge_and_the_page() -> None:
    """Readers of the README see the mutation score and where it comes from."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "docs/pictures/mutation-score.svg" in readme
    assert "docs/mutation-results.md" in readme
