"""The kill table as a page: the figures first, then a row a fault."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tests.mutation.measure import Fact
from tests.mutation.other_checks import CHECKS

#: The figures that are asked for: seconds of the median, and of the run by whose end most faults are found.
SOON, LATE = 2.0, 60.0


def table(facts: Sequence[Fact], library: int) -> Iterator[str]:
    """Lines of Markdown; ``library`` is how many faults there are, measured or not."""
    yield "# What the suites catch"
    yield ""
    if len(facts) < library:
        yield f"So far {len(facts)} of the library's {library} faults are measured, drawn from it at random."
        yield ""
    yield from (*_words(figures(facts)), "", *_growth(facts), *_others(facts), "", "## Fault by fault", "")
    yield "| fault | stands for | first caught by | rightly | seconds (examples) alone | seconds (rows) in a run |"
    yield "|---|---|---|---|---|---|"
    yield from (_row(fact) for fact in facts)


def figures(facts: Sequence[Fact]) -> dict[str, float]:
    """The figures of the table, from its rows; the last four are of those that were put before a run."""
    killable = [fact for fact in facts if not fact["equivalent"]]
    killed = [fact for fact in killable if fact["killed"]]
    alone = [fact["seconds"] for fact in killed if fact["world"] == "threads" and fact["verdict"] == "fail"]
    ran = before_a_run(facts)
    found = [fact for fact in ran if fact["run_seconds"] is not None]
    run = [fact["run_seconds"] for fact in found if fact["world"] == "threads"]
    return {
        "faults": len(facts),
        "equivalent": len(facts) - len(killable),
        "killed": len(killed),
        "median seconds alone": statistics.median(alone or [0.0]),
        "in a run": len(ran),
        "attributed": sum(fact["attributed"] for fact in ran if fact["killed"]),
        "within a minute": sum(fact["run_seconds"] <= LATE for fact in found),
        "median seconds in a run": statistics.median(run or [0.0]),
    }


def before_a_run(facts: Sequence[Fact]) -> list[Fact]:
    """Of the faults that can be caught, those that were put before a whole run."""
    return [fact for fact in facts if not fact["equivalent"] and fact["run_rows"] is not None]


def _words(found: dict[str, float]) -> Iterator[str]:
    killable, ran = found["faults"] - found["equivalent"], found["in a run"]
    yield (
        "Made by `python -m tests.mutants`; the same as data: [detection.json](detection.json). Each faulty subject is "
        "put before the requirement that is named for it; and before a quick run of all of them on two ranks, by two "
        "workers, in threads, or in processes if it is a backend. *First caught by* is the first requirement of that "
        "run to say `fail`, or the one named where two ranks cannot show it or no run was tried; *rightly* says that "
        "the fault breaks what this requirement requires. What torch's own FSDP fails counts for nothing here."
    )
    yield ""
    yield "| figure | value |"
    yield "|---|---|"
    yield f"| faults | {found['faults']:.0f}, of which {found['equivalent']:.0f} can be told from right by nobody |"
    yield f"| caught | {found['killed']:.0f} of {killable:.0f} ({found['killed'] / killable:.1%}) |"
    yield f"| median time to first red, the requirement alone, threads | {found['median seconds alone']:.2f} s |"
    if ran:
        yield f"| put before a run | {ran:.0f}{'' if ran == killable else ', drawn at random'} |"
        yield f"| of these, first caught by a right requirement | {_share(found['attributed'], ran)} |"
        yield f"| of these, caught in the first {LATE:.0f} s | {_share(found['within a minute'], ran)} |"
        yield f"| median time to first red, in that run, threads | {found['median seconds in a run']:.1f} s |"


def _share(part: float, whole: float) -> str:
    return f"{part:.0f} ({part / max(whole, 1):.1%})"


def _growth(facts: Sequence[Fact]) -> Iterator[str]:
    """How the share of faults that have been caught grows with the seconds of a run."""
    ran = before_a_run(facts)
    if not ran:
        return
    found = [fact["run_seconds"] for fact in ran if fact["run_seconds"] is not None]
    yield "## How soon, in a quick run on two ranks"
    yield ""
    yield "![The share of faults that are caught, by the seconds of a run](pictures/detection.svg)"
    yield ""
    yield "| seconds | caught | |"
    yield "|---|---|---|"
    for until in (0.5, 1, 2, 5, 10, 20, 30, 60):
        share = sum(seconds <= until for seconds in found) / max(len(ran), 1)
        yield f"| {until:g} | {share:.0%} | {'█' * round(40 * share)} |"
    yield ""


def _others(facts: Sequence[Fact]) -> Iterator[str]:
    """What the checks that others use would have found."""
    tried = [fact for fact in facts if fact["others"] and not fact["equivalent"]]
    yield "## The same faults before the checks that others use"
    yield ""
    yield (
        f"The {len(tried)} faults that threads can show. Each check (`tests/mutation/other_checks.py`) trains one "
        "small net of even sizes for ten steps with Adam on two ranks, and compares it with the unsharded net: the "
        "loss, where all ranks are given the same rows; the loss, where each has its own; that, and all gradients and "
        "parameters after every step. The first is all that some backends are tested with, the second what most "
        "training tests of torch's own FSDP compare, the third the strictest of them."
    )
    yield ""
    yield "| check | catches | misses |"
    yield "|---|---|---|"
    for check in CHECKS:
        missed = sum(fact["others"][check] for fact in tried)
        yield f"| {check} | {len(tried) - missed} | {missed} ({missed / max(len(tried), 1):.0%}) |"
    missed = sum(not fact["killed"] for fact in tried)
    yield f"| these suites | {len(tried) - missed} | {missed} |"


def _row(fact: Fact) -> str:
    caught = f"`{fact['killed_by']}`" if fact["killed"] else fact["why_equivalent"] or "**nothing**"
    run = "–" if fact["run_seconds"] is None else f"{fact['run_seconds']:.1f} ({fact['run_rows']})"
    alone = f"{fact['seconds']:.2f} ({fact['examples']})"
    right = "yes" if fact["attributed"] else f"no: `{fact['named']}`"
    return f"| `{fact['id']}` | {fact['origin']} | {caught} | {right} | {alone} | {run} |"
