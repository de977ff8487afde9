"""What came of the mutants of a seed, as Markdown: scores, survivors with their diffs, and what killed the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.data.kinds import WORLDS
from tests.random_mutants.sampling import RandomMutant, unmutated
from tests.random_mutants.trying import Try

_COLUMNS = "| file | mutants | killed | of these crashes | survived | broken | score |\n|---|---|---|---|---|---|---|"


def report(mutants: Sequence[RandomMutant], results: Mapping[tuple[str, str, str], Try]) -> Iterator[str]:
    """Lines of Markdown on those mutants that were tried in the first world at least."""
    for own in {one.id: one for one in map(unmutated, mutants)}.values():
        last = _last(own, results)
        if last is not None and last.end != "survived":
            yield f"**The unmutated subject ended as {last.end} by `{last.by}` in {last.world}: {last.message}.**\n"
    ends = {mutant: last for mutant in mutants if (last := _last(mutant, results)) is not None}
    yield _COLUMNS
    for file in sorted({mutant.file for mutant in ends}):
        yield _row(file, [last for mutant, last in ends.items() if mutant.file == file])
    yield _row("all", list(ends.values()))
    yield f"\n{len(mutants) - len(ends)} of {len(mutants)} mutants have no result yet.\n\n## Not killed\n"
    for last in ends.values():
        if not last.is_killed:
            words = " ".join(filter(None, (last.end, "in", last.world, last.by, last.message)))
            yield f"`{last.id}`, {words}\n```diff\n{last.diff}\n```\n"
    yield "## First killed by\n\n| mutant | by | after | message |\n|---|---|---|---|"
    for last in ends.values():
        if last.is_killed:
            by = f"{last.end}: {last.by or 'the start'} ({last.world})"
            message = last.message.replace("|", "\\|").replace("`", "'")
            yield f"| `{last.id}` | {by} | {last.position} | `{message}` |"


def _last(mutant: RandomMutant, results: Mapping[tuple[str, str, str], Try]) -> Try | None:
    """Its result in the last world in which it has one."""
    found = [results.get((mutant.id, mutant.diff, world)) for world in WORLDS]
    return next((one for one in reversed(found) if one is not None), None)


def _row(name: str, lasts: Sequence[Try]) -> str:
    killed, ends = sum(one.is_killed for one in lasts), [one.end for one in lasts]
    counts = (len(lasts), killed, ends.count("crash"), ends.count("survived"), ends.count("broken"))
    score = f"{killed / len(lasts):.0%}" if lasts else "–"
    return f"| {name} | {' | '.join(map(str, counts))} | {score} |"
