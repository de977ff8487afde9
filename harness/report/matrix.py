"""The matrix of a run's combinations: dimensions by dimensions, and behind each cell the values of two by each other.

Of ``net`` (linear, tied) and ``mesh`` (2, 3), where three ranks are not claimed, and all else was tried and passed::

             net   mesh             net and mesh    2    3
    net      2                      linear          4    ○
    mesh     2/4   1/2              tied            1    ○

2/4: two of four pairs passed. 4: this one in four combinations. A cell that did not pass says why, and leads to the
result; a value that did not pass by itself says so once for all its cells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from harness.data.text import one_line, plural
from harness.records.pairs import End, Pairs, Together, Value
from harness.records.record import Record, Verdict

#: How each end is drawn, in a character and a class of the style sheet; what passed is a number.
_SIGNS = {
    End.FAIL: ("✗", "over"),
    End.WAIVED: ("w", "waived"),
    End.UNCLEAR: ("?", "open"),
    End.NOT_TRIED: ("!", "open"),
    End.NOT_RUN: ("–", "open"),
    End.NOT_CLAIMED: ("○", "off"),
    End.IMPOSSIBLE: ("·", "none"),
    End.PASS: ("✓", "exact"),
}
#: What the signs mean.
MATRIX_KEY = (
    ("exact", "4", "passed, in so many combinations; ✓ in a requirement of its own"),
    ("over", "✗", "fails"),
    ("waived", "w", "fails, waived"),
    ("open", "?", "only where something else fails"),
    ("open", "!", "not tried"),
    ("open", "–", "not run"),
    ("off", "○", "not claimed"),
    ("none", "·", "impossible"),
)
#: How many cells and heads of a matrix have words or a link of their own; how many reasons are told, and pairs of each;
#: and how long a name is shown. Ours has 17 dimensions and 98 values.
MOST_TOLD, MOST_REASONS, MOST_NAMED, LONGEST = 1000, 100, 6, 60
#: What nothing was learned of, and the rest that did not pass.
_OPEN = (End.UNCLEAR, End.NOT_TRIED, End.NOT_RUN)
_LEFT = (End.NOT_CLAIMED, End.IMPOSSIBLE)


@dataclass(frozen=True)
class MatrixCell:
    """Its sign, its class if it did not pass, why, where the page has more of it, and how many columns it spans."""

    text: str
    shade: str = ""
    said: str = ""
    href: str = ""
    span: int = 1


@dataclass(frozen=True)
class ValueHead:
    """A value at the side or the head of a table; ``shade`` and ``said`` if it did not pass by itself."""

    name: str
    shade: str
    said: str


@dataclass(frozen=True)
class ValueTable:
    """The values of one dimension, or each with those of another, which are ``heads``."""

    anchor: str
    name: str
    heads: tuple[ValueHead, ...]
    lines: tuple[tuple[ValueHead, tuple[MatrixCell, ...]], ...]


@dataclass(frozen=True)
class Line:
    """Pairs that did not pass, for one reason."""

    end: End
    said: str
    why: str
    href: str


@dataclass(frozen=True)
class Matrix:
    """``rows`` are dimensions, each with a cell for those up to itself; ``summary`` has how many pairs came to what.

    ``causes`` are the failures, ``open`` what nothing was learned of, ``left`` what cannot be or is not claimed.
    """

    anchor: str
    rows: tuple[tuple[str, tuple[MatrixCell, ...]], ...]
    tables: tuple[ValueTable, ...]
    summary: str
    causes: tuple[Line, ...]
    open: tuple[Line, ...]
    left: tuple[Line, ...]
    left_out: int


def matrix_of(records: Sequence[Record], anchor: str, hrefs: Mapping[str, str]) -> Matrix | None:
    """The matrix of a run, None if it combined nothing. ``hrefs`` has where the page tells of a result, by node id."""
    pairs = Pairs(records)
    if not pairs.dimensions:
        return None
    drawing = _Drawing(pairs, f"{anchor}-matrix", hrefs)
    names = list(pairs.dimensions)
    cells = [tuple(drawing.cell(name, other) for other in names[: n + 1]) for n, name in enumerate(names)]
    return Matrix(
        anchor=drawing.anchor,
        rows=tuple((one_line(name, LONGEST), line) for name, line in zip(names, cells, strict=True)),
        tables=tuple(drawing.tables),
        summary=f"{plural(sum(drawing.ends.values()), 'pair')} of values: {_counted(drawing.ends)}",
        causes=_some(drawing.causes()),
        open=_some(drawing.reasons(_OPEN)),
        left=_some(drawing.reasons(_LEFT)),
        left_out=pairs.left_out,
    )


def _some(lines: Iterator[Line]) -> tuple[Line, ...]:
    shown, rest = list(islice(lines, MOST_REASONS)), list(lines)
    more = [Line(rest[0].end, "the record file has them", f"{plural(len(rest), 'more reason')}", "")] if rest else []
    return (*shown, *more)


class _Drawing:
    """The tables while they are made. ``ends`` counts pairs; ``_alike`` has them by reason."""

    def __init__(self, pairs: Pairs, anchor: str, hrefs: Mapping[str, str]) -> None:
        self.pairs, self.anchor, self.tables, self.ends = pairs, anchor, list[ValueTable](), Counter[End]()
        self._hrefs, self._told = hrefs, 0
        self._alike: dict[tuple[End, str, str], list[tuple[Value, Value]]] = {}
        values = ((name, value) for name, every in pairs.dimensions.items() for value in every)
        self._alone = {value: pairs.of(value, value) for value in values}

    def cell(self, row: str, column: str) -> MatrixCell:
        """The cell of two dimensions, or of one given twice, whose table is made with it."""
        anchor = f"{self.anchor}-{len(self.tables) + 1}"
        values, heads = self._values(row), self._values(column) if row != column else []
        found = {
            pair: self._of(*pair) for pair in (product(heads, values) if heads else zip(values, values, strict=True))
        }
        name = " and ".join(one_line(name, LONGEST) for name in dict.fromkeys((row, column)))
        lines = tuple(self._line(value, heads, found) for value in values)
        self.tables.append(ValueTable(anchor, name, tuple(map(self._head, heads)), lines))
        ends = Counter(each.end for each in found.values())
        return _of_dimensions(ends, f"{name}: {_counted(ends)}", f"#{anchor}")

    def _values(self, name: str) -> list[Value]:
        return [(name, value) for value in self.pairs.dimensions[name]]

    def _of(self, one: Value, other: Value) -> Together:
        if one == other:
            return self._alone[one]
        found = self.pairs.of(one, other)
        self.ends[found.end] += 1
        if found.end is not End.PASS:
            self._alike.setdefault((found.end, found.why, found.which), []).append((one, other))
        return found

    def _line(
        self, value: Value, heads: Sequence[Value], found: Mapping[tuple[Value, Value], Together]
    ) -> tuple[ValueHead, tuple[MatrixCell, ...]]:
        """A value with each that stands at the head; by itself if none does."""
        own = [found[one, value] for one in heads or [value]]
        near = [{self._alone[value].end, self._alone[one].end} if heads else set[End]() for one in heads or [value]]
        return self._head(value), (self._whole(own),) if _is_one(own) else tuple(map(self._drawn, own, near))

    def _whole(self, line: Sequence[Together]) -> MatrixCell:
        """One cell for a line that came to the same for one reason, with its words."""
        found = line[0]
        sign, shade = _SIGNS[found.end]
        href = self._href(found.record) if found.end not in _LEFT else ""
        return MatrixCell(f"{sign} {_why(found)}", shade, "", href, len(line))

    def _head(self, value: Value) -> ValueHead:
        alone = self._alone[value]
        name = one_line(value[1], LONGEST)
        if alone.end is End.PASS:
            return ValueHead(name, "", "")
        return ValueHead(name, _SIGNS[alone.end][1], _said(alone) if self._may_tell() else "")

    def _drawn(self, found: Together, said_near: set[End]) -> MatrixCell:
        text, shade = _SIGNS[found.end]
        if found.end is End.PASS and found.passes:
            return MatrixCell(str(found.passes))
        said = "" if found.end in said_near else _said(found)
        href = self._href(found.record) if found.end not in _LEFT else ""
        return MatrixCell(text, shade, said, href) if (said or href) and self._may_tell() else MatrixCell(text, shade)

    def _may_tell(self) -> bool:
        self._told += 1
        return self._told <= MOST_TOLD

    def _href(self, record: Record | None) -> str:
        return self._hrefs.get(record.nodeid, "") if record is not None else ""

    def causes(self) -> Iterator[Line]:
        """What fails, by cause, that of most results first; then what fails in a requirement of its own."""
        for cause in self.pairs.causes:
            pairs = sum(len(alike) for (_, why, _), alike in self._alike.items() if why == cause.words)
            end = End.WAIVED if all(record.verdict is Verdict.WAIVED for record in cause.records) else End.FAIL
            said = f"{plural(len(cause.records), 'result')}, {plural(pairs, 'pair')} of values"
            yield Line(end, said, one_line(cause.words, 300), self._href(cause.records[0]))
        known = {one_line(cause.words, 300) for cause in self.pairs.causes}
        yield from (line for line in self.reasons((End.FAIL, End.WAIVED)) if line.why not in known)

    def reasons(self, ends: Iterable[End]) -> Iterator[Line]:
        """What came to these ends, a line a reason, in the order of the ends."""
        for end in ends:
            for (own, why, which), alike in self._alike.items():
                if own is end:
                    names = which or _named(alike)
                    first = self.pairs.of(*alike[0])
                    said = f"{plural(len(alike), 'pair')}: {one_line(names)}"
                    yield Line(end, said, one_line(why, 300), self._href(first.record))


def _is_one(line: Sequence[Together]) -> bool:
    return line[0].end is not End.PASS and len({(one.end, one.why, one.which) for one in line}) == 1


def _named(pairs: Sequence[tuple[Value, Value]]) -> str:
    named = ["{}={} with {}={}".format(*one, *other) for one, other in pairs[:MOST_NAMED]]
    return "; ".join([*named, *(["…"] if len(pairs) > MOST_NAMED else [])])


def _said(found: Together) -> str:
    passes = f"; passes in {plural(found.passes, 'other combination')}" if found.passes else ""
    return one_line(f"{_why(found)}{passes}", 300)


def _why(found: Together) -> str:
    is_said = found.end is End.FAIL and found.why.startswith("fails")
    return one_line(found.why if is_said else f"{found.end}: {found.why}", 300)


def _of_dimensions(ends: Counter[End], said: str, href: str) -> MatrixCell:
    """The cell of two dimensions: what fails of their pairs, else how many of those that can be passed."""
    total, passed = sum(ends.values()) - ends[End.IMPOSSIBLE], ends[End.PASS]
    for end in (End.FAIL, End.WAIVED):
        if ends[end]:
            return MatrixCell(f"{_SIGNS[end][0]} {ends[end]}", _SIGNS[end][1], said, href)
    worst = next((end for end in End if ends[end] and end is not End.IMPOSSIBLE), End.IMPOSSIBLE)
    text = f"{passed}/{total}" if total > passed else str(passed) if total else _SIGNS[End.IMPOSSIBLE][0]
    return MatrixCell(text, _SIGNS[worst][1], said, href)


def _counted(ends: Counter[End]) -> str:
    order = (End.PASS, *(end for end in End if end is not End.PASS))
    return ", ".join(f"{ends[end]} {end}" for end in order if ends[end])
