"""A failing result with what a person needs to see it again: what differs, the end of each rank, and how to run it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import pairwise

from harness.data.text import clipped, json_text, plural
from harness.records.record import FailedComparison, RankOutcome, Record
from harness.report.words import case_words

#: What of a record's own numbers is taken for one.
_MOST = 1e300


@dataclass(frozen=True)
class RankEnd:
    """The end of one rank."""

    rank: str
    fate: str
    error: str
    traceback: str
    log: str


@dataclass(frozen=True)
class Differs:
    """One comparison that failed: whose, where, what came, what was expected; by how much, in words."""

    where: str
    path: str
    got: str
    want: str
    much: str


@dataclass(frozen=True)
class Command:
    """One way to see a failure again: what it is called, the line for a shell, and what the line is to a listener."""

    name: str
    line: str
    what: str


@dataclass(frozen=True)
class Card:
    """One failing result. ``words`` are its case in a line, ``again`` what became of running that again."""

    anchor: str
    record: Record
    message: str
    case: str
    words: str
    again: str
    differences: tuple[Differs, ...]
    ranks: tuple[RankEnd, ...]
    forms: tuple[Command, ...]

    @property
    def all_returned(self) -> bool:
        """Whether there is nothing to tell of any rank but that it returned."""
        return all((e.fate, e.error, e.traceback, e.log) == ("returned", "", "", "") for e in self.ranks)

    @property
    def first_line(self) -> str:
        """The first line of the message, for lists."""
        return clipped((self.message.splitlines() or [""])[0], 300)


def brief_card_of(record: Record, anchor: str) -> Card:
    """The card of a result that has only a line on the page."""
    return Card(anchor, record, clipped(record.message), "", "", "", (), (), ())


def card_of(record: Record, anchor: str, file: str) -> Card:
    """The card of a result of the record file of that name."""
    return Card(
        anchor=anchor,
        record=record,
        message=clipped(record.message),
        case=json_text(record.case) if record.case is not None else "",
        words=_words(record),
        again=again_words(record.again),
        differences=tuple(map(_differs, record.differences)),
        ranks=tuple(map(_rank_end, record.ranks)),
        forms=tuple(_forms(record, file)),
    )


def _words(record: Record) -> str:
    """The case in a line; of one that has values of dimensions, only those that are not the usual ones."""
    usual = {name: values[0] for name, values in record.combinations.get("dimensions", {}).items() if values}
    special = {name: value for name, value in (record.case or {}).items() if usual.get(name) != value}
    return case_words(special) or ("nothing special" if usual and record.case else "")


def is_flaky(record: Record) -> bool:
    """Whether the failing case passed when it was run again."""
    return "P" in record.again


def again_words(again: str) -> str:
    """``FFP`` in words; empty where the case was not run again."""
    runs, passes = len(again), again.count("P")
    if not runs:
        return ""
    if not passes:
        return "it failed again" if runs == 1 else f"it failed each of {runs} times"
    return f"flaky: passed {passes} of {plural(runs, 'time')} that it was run again ({clipped(again, 40)})"


def _forms(record: Record, file: str) -> list[Command]:
    of = f"of {record.requirement} in {record.world}"
    forms = [Command("By pytest", record.reproduce, f"the pytest line {of}")] if record.reproduce else []
    if record.case is not None:
        command = shlex.join(["fsdp-conformance", "reproduce", *_modules(record), file, record.nodeid])
        script = f"{command} --script > repro.py && python repro.py"
        forms.append(Command("As a script without this suite", script, f"the line that makes a script {of}"))
        forms.append(Command("By torchrun (prints its line)", f"{command} --torchrun", f"the torchrun form {of}"))
    return forms


def _modules(record: Record) -> list[str]:
    """The options of the pytest line that name modules, which ``reproduce`` needs, since it imports none unasked."""
    try:
        words = shlex.split(record.reproduce[:2000].partition(" --case ")[0])
    except ValueError:
        return []
    pairs = list(pairwise(words))
    found = {name: value for name, value in pairs if name in ("--implementation", "--backend") and ":" in value}
    return [word for pair in found.items() for word in pair]


def _differs(found: FailedComparison) -> Differs:
    words = (clipped(found.get("where", ""), 500), clipped(found.get("path", ""), 500))
    values = (clipped(found.get("got", ""), 500), clipped(found.get("want", ""), 500))
    return Differs(*words, *values, much=_much(found.get("off"), found.get("allowed"), found.get("ulp")))


def _much(off: float | None, allowed: float | None, ulp: float | None) -> str:
    if off is None or allowed is None or max(abs(off), abs(allowed)) >= _MOST:
        return "no bound measures it"
    said = f"{off:.3g} off, {allowed:.3g} allowed" if allowed else f"{off:.3g} off, nothing allowed"
    units = [size / ulp for size in (off, allowed)] if ulp is not None and 0 < ulp < _MOST else []
    if units and all(abs(size) < _MOST for size in units):
        said += f": {units[0]:.3g} ULP" + (f", {units[1]:.3g} allowed" if allowed else "")
    return said


def _rank_end(end: RankOutcome) -> RankEnd:
    parts = (end.get("fate", ""), end.get("error", ""), end.get("traceback", ""), end.get("log", ""))
    return RankEnd(str(end.get("rank", "")), *map(clipped, parts))
