"""How far a run is, of the rows that it has: a line for whoever waits, and one for each red row as it comes.

[34%] 340 of 986 rows: 335 pass, 2 fail, 3 waived; 58 s, about 1 min 50 s left; now parity/general [threads]
fail: parity/exact [threads] rank 0: [0] 'loss' is 3.0, expected 1.5 (difference 1.5, allowed 0)
"""

from __future__ import annotations

from collections import Counter

from harness.data.text import one_line, seconds_text
from harness.records.record import Record, Verdict


def row_line(record: Record) -> str:
    """A row in one line: its verdict, which it is, and the first line of its message."""
    first = (record.message.splitlines() or [""])[0]
    return one_line(f"{record.verdict}: {record.requirement} [{record.world}] {first}")


class Progress:
    """Counts rows by verdict; ``planned`` is how many there will be. A row that is written again counts once."""

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self._rows: dict[str, Verdict] = {}

    @property
    def rows(self) -> int:
        """How many rows have ended."""
        return len(self._rows)

    def add(self, record: Record) -> str:
        """Count a row; if it is red, and was not before, what to say of it at once, else ""."""
        before = self._rows.get(record.nodeid)
        self._rows[record.nodeid] = record.verdict
        if not record.verdict.is_red or (before is not None and before.is_red):
            return ""
        return row_line(record)

    def line(self, seconds: float, at: str = "") -> str:
        """The line after so many seconds; ``at`` is what runs now. What is left is said once some rows have ended."""
        counts = Counter(self._rows.values())
        found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
        words = [f"[{self._percent()}%] {self.rows} of {self.planned} rows{': ' if found else ''}{found}"]
        words.append(seconds_text(seconds) + self._left(seconds))
        return one_line("; ".join([*words, *([f"now {at}"] if at else [])]))

    def _percent(self) -> int:
        return 100 * self.rows // max(self.planned, self.rows, 1)

    def _left(self, seconds: float) -> str:
        missing = self.planned - self.rows
        if missing <= 0 or self.rows < 5:
            return ""
        return f", about {seconds_text(seconds / self.rows * missing)} left"
