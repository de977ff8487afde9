"""The mutation results as a page of Markdown, and the mutation score as a badge."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.mutants import Mutant
from tests.mutation.measure import Result
from tests.mutation.other_checks import CHECKS

INTRODUCTION = """\
# Mutation results

A *mutant* is an implementation or a backend with one defect made on purpose; a requirement *kills* it by failing. The
*mutation score* is the share of mutants that are killed, without *equivalent* ones, which no requirement can kill.

Each mutant (`tests/mutants/`) names the requirement that must kill it; `tests/mutation/test_mutants_are_killed.py`
tests that. It is also measured which requirement of a whole run fails first: on two ranks, in fail-fast order, in
threads for implementations and in processes for backends. Results that torch's own FSDP fails do not count.

| how to | command |
|---|---|
| measure new mutants, and write this page | `python -m tests.mutants --missing` |
| measure all again (hours) | `python -m tests.mutants` |
| see what kills one | `pytest tests/mutation/test_mutants_are_killed.py -k NAME` |

One line per mutant is in [mutation-results.tsv](mutation-results.tsv): id, world, seconds until the requirement named
for it failed, the first requirement of a run to fail, how many results came before, and which of the
[simpler checks](#compared-with-simpler-checks) kill it. Messages and smallest failing cases are written to
`reports/mutants.jsonl` when mutants are measured.
"""
OTHERS = """\
Each check (`tests/mutation/other_checks.py`) trains one small net of even sizes for ten steps with Adam on two ranks,
and compares it with the unsharded net: the loss, with the same input on all ranks; the loss, with each rank's own
input; that, and all gradients and parameters after every step. The first is how some backends are tested, the second
what most training tests of torch's own FSDP compare, the third the strictest of them.
"""
STYLE = "text{font:12px system-ui,sans-serif;fill:#fff;text-anchor:middle}"


def page(results: Sequence[Result], mutants: Sequence[Mutant]) -> Iterator[str]:
    """Lines of Markdown."""
    library = {mutant.id: mutant for mutant in mutants}
    score = scored(results, mutants)
    total = sum(score.values())
    unrelated = [f"`{one.id}` by `{one.first}`" for one in results if not attributed(one, library[one.id])]
    yield from INTRODUCTION.splitlines()
    yield from ("", "| figure | value |", "|---|---|")
    yield f"| mutants | {len(results)}, of which {len(results) - total} equivalent |"
    yield f"| killed | {score[True]} of {total} (mutation score {score[True] / total:.1%}) |"
    yield f"| median time until the requirement named for it fails, threads | {median_seconds(results):.2f} s |"
    yield f"| first killed in a run by an unrelated requirement | {len(unrelated)}: {'; '.join(unrelated) or '–'} |"
    positions = sorted(one.position for one in results if one.position is not None)
    yield f"| not shown by two ranks | {len(results) - len(positions)} |"
    for share in (0.5, 0.8, 0.9):
        found = positions[min(int(share * len(results)), len(positions) - 1)]
        yield f"| results of a run before {share:.0%} of the mutants are killed | {found} |"
    yield from ("", "## By chapter and world", "", *_chapters(results, library))
    yield from ("", "## Equivalent mutants", "")
    yield from [f"- `{one.id}`: {one.why_equivalent}" for one in mutants if one.why_equivalent] or ["None at present."]
    yield from ("", "## Compared with simpler checks", "", *OTHERS.splitlines(), "", *_others(results, library))


def scored(results: Sequence[Result], mutants: Sequence[Mutant]) -> Counter[bool]:
    """How many mutants are killed and how many survive, without equivalent ones."""
    equivalent = {mutant.id for mutant in mutants if mutant.why_equivalent}
    return Counter(result.is_killed for result in results if result.id not in equivalent)


def attributed(result: Result, mutant: Mutant) -> bool:
    """Whether what kills a mutant first in a run states what its defect breaks; also where a run does not show it."""
    return not result.first or mutant.may_be_killed_by(result.first)


def median_seconds(results: Sequence[Result]) -> float:
    """Until the requirement named for a mutant has failed, in threads."""
    return statistics.median(one.seconds for one in results if one.world == "threads" and one.seconds is not None)


def _chapters(results: Sequence[Result], library: dict[str, Mutant]) -> Iterator[str]:
    """How many of the mutants named for a chapter's requirements are killed, by world."""
    total: Counter[tuple[str, str]] = Counter()
    killed: Counter[tuple[str, str]] = Counter()
    for result in results:
        if not library[result.id].why_equivalent:
            place = library[result.id].killed_by.partition("/")[0], result.world
            total[place] += 1
            killed[place] += result.is_killed
    yield "| chapter of the requirement named | killed, threads | killed, processes |"
    yield "|---|---|---|"
    for chapter in sorted({chapter for chapter, _ in total}):
        cells = [(killed[chapter, world], total[chapter, world]) for world in ("threads", "processes")]
        yield f"| {chapter} | {' | '.join(f'{part} of {whole}' if whole else '–' for part, whole in cells)} |"


def _others(results: Sequence[Result], library: dict[str, Mutant]) -> Iterator[str]:
    """How many of the mutants that threads show each of the simpler checks kills."""
    tried = [one for one in results if one.others and not library[one.id].why_equivalent]
    yield f"| check | killed, of {len(tried)} mutants in threads |"
    yield "|---|---|"
    for place, check in enumerate(CHECKS):
        killed = sum(one.others[place] == "x" for one in tried)
        yield f"| {check} | {killed} ({killed / len(tried):.0%}) |"
    yield f"| these suites | {sum(one.is_killed for one in tried)} |"


def badge(results: Sequence[Result], mutants: Sequence[Mutant]) -> str:
    """The mutation score as plain SVG: words on grey, and a figure on a colour."""
    score = scored(results, mutants)
    figure = f"{score[True]} of {sum(score.values())}"
    colour = "#bc4c00" if score[False] else "#0969da"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 180 22" width="180" height="22" role="img" \
aria-label="mutants killed: {figure}">
<title>mutants killed: {figure}</title>
<style>{STYLE}</style>
<rect width="100" height="22" rx="4" fill="#57606a"/>
<rect x="96" width="84" height="22" rx="4" fill="{colour}"/>
<text x="49" y="15">mutants killed</text>
<text x="138" y="15">{figure}</text>
</svg>
"""
