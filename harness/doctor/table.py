"""All rows of the doctor by number: those about devices, then those about groups."""

from __future__ import annotations

from harness.doctor.rows import Row
from harness.doctor.rows_of_devices import ROWS as devices
from harness.doctor.rows_of_groups import ROWS as groups


def all_rows() -> dict[str, Row]:
    """Every row by its number, in the order in which they are asked."""
    return {row.number: row for row in (*devices, *groups)}


def in_order() -> dict[str, Row]:
    """Every row, as numbers go: 9, 10, 15a."""
    rows = all_rows()
    return dict(sorted(rows.items(), key=lambda item: (int(item[0].rstrip("abcd")), item[0])))
