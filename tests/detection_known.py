"""What the package knows of faults: with which words each fails, so that a page can say what a failure looks like.

Of one fault::

    {"id": "reductions.drops_rank_zero", "says": "drops rank zero", "origin": "meta-pytorch/torchcomms#477",
     "seen": [["parity/exact", "disagreement", "rank 0: [0] 'gradients' '0.weight'[0, 0] is 4.0, expected 6.0 …"]]}

A requirement, the class of failure ("" where it was not noted), and the message's first line. Faults that nothing
caught, or that nobody can tell from right, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
from tests.detection import ROOT, Fact
from tests.detection_table import figures

#: Shipped with the page, which reads nothing else beside records.
KNOWN = ROOT / "harness" / "report" / "known_faults.json"


def known(facts: Sequence[Fact], library: int) -> dict[str, Any]:
    """The file's content: the table's figures, and what each fault looks like. ``library`` is how many there are."""
    return {
        "schema": 1,
        "suite_version": harness.__version__,
        "measured": max((fact["date"] for fact in facts), default=""),
        "library": library,
        "figures": figures(facts),
        "faults": [_fault(fact) for fact in facts if fact["killed"] and not fact["equivalent"]],
    }


def _fault(fact: Fact) -> dict[str, Any]:
    seen = [[fact["named"], fact["cause"], fact["message"]]] if fact["verdict"] == "fail" else []
    if fact["killed_by"] != fact["named"]:
        seen.append([fact["killed_by"], "", fact["run_message"]])
    says = Path(fact["id"]).suffix[1:].replace("_", " ")
    return {"id": fact["id"], "says": says, "origin": fact["origin"], "seen": [row for row in seen if row[2]]}
