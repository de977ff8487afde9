"""The names of reductions: ``"AVG"`` of ``ReduceOp.AVG``, whatever form torch hands it over in."""

from __future__ import annotations

from typing import Any

from torch.distributed import ReduceOp

#: Asked for at every call, and dear to ask torch for.
_NAMES = {int(kind.value): name for name, kind in ReduceOp.RedOpType.__members__.items()}


def kind_name(kind: Any) -> str:
    """A reduction's name by its number, or by torch's own word for that: ``"AVG"``."""
    return _NAMES[int(kind)]


def op_name(op: Any) -> str:
    """A reduction's name, of one as torch hands it over."""
    return kind_name(op.op)
