"""A failing case in words, for readers of the page, and what kind of thing went wrong in it.

``{"case": "TrainingCase", "world_size": 2, "net": {"case": "Stack", "dim": 1, "blocks": ["linear", "linear"], "bias":
false}, "dtype": "float32", "steps": 1, "batch": 3, "mesh": []}`` is::

    2 ranks, 1 step, Stack(dim 1, blocks linear ×2), float32, batch 3
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any

from harness.data.text import json_text, one_line, plural
from harness.records.record import Record

#: What is counted, said first, with what it counts.
_COUNTED = {"world_size": "rank", "steps": "step"}
#: What is left out: the class of the whole, and what says nothing of what is asked.
_SILENT = ("case", "seed")
#: How many items of a list and of an object are said, how deep, and how many characters in all.
_MOST_ITEMS, _MOST_PARTS, _MOST_DEEP, _LONGEST = 8, 64, 4, 300
#: Parts of a path that say when, and not what.
_MOMENTS = frozenset({"points", "steps", "ranks"})


def case_words(case: Any) -> str:
    """The case in one line: how many ranks and steps, what net, what dtype, and what else it asks for."""
    if not isinstance(case, dict):
        return ""
    counted = [plural(case[key], noun) for key, noun in _COUNTED.items() if _is_count(case.get(key))]
    rest = {key: value for key, value in case.items() if key not in _COUNTED}
    # Nets and other parts that are cases of their own come first, then the dtype, then the rest as it stands.
    order = sorted(rest, key=lambda key: (not isinstance(rest[key], dict), key != "dtype"))
    said = one_line(", ".join([*counted, *_all_said(((key, rest[key]) for key in order), 0)]), 10 * _LONGEST)
    return said if len(said) <= _LONGEST else said[:_LONGEST].rstrip(", ") + " …"


def _all_said(parts: Iterable[tuple[str, Any]], depth: int) -> Iterator[str]:
    for key, value in islice(parts, _MOST_PARTS):
        if key not in _SILENT and value is not None and value is not False and value not in ("", [], {}):
            yield _said(key.replace("_", " "), value, depth)


def _said(key: str, value: Any, depth: int) -> str:
    if value is True:
        return key
    if key == "dtype":
        return _plain(value, depth)
    if isinstance(value, dict):
        return _plain({**value, "case": value.get("case") or key}, depth)
    if key == "mesh" and isinstance(value, list):
        return f"mesh {'×'.join(_plain(size, depth) for size in value[:_MOST_ITEMS])}"
    return f"{key} {_plain(value, depth)}"


def _plain(value: Any, depth: int) -> str:
    if depth >= _MOST_DEEP:
        return "…"
    if isinstance(value, dict):
        inner = ", ".join(_all_said(value.items(), depth + 1))
        name = value.get("case", "")
        return f"{name}({inner})" if inner else str(name) or "nothing"
    if isinstance(value, list):
        words = [_plain(item, depth + 1) for item in value[: 4 * _MOST_ITEMS]]
        counts = [(word, len(list(same))) for word, same in groupby(words)]
        few = [word if count == 1 else f"{word} ×{count}" for word, count in counts[:_MOST_ITEMS]]
        whole = len(counts) <= _MOST_ITEMS and len(value) <= 4 * _MOST_ITEMS
        return ", ".join([*few, *([] if whole else ["…"])])
    return one_line(str(value), 80)


def case_size(case: Any) -> tuple[int, int, int]:
    """How large a case is, to put the smallest first; where there is none it comes last."""
    if not isinstance(case, dict):
        return (10**9, 0, 0)
    ranks, steps = (case[key] if _is_count(case.get(key)) else 0 for key in _COUNTED)
    return (ranks, steps, len(json_text(case)))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**6


def kind_of(record: Record) -> str:
    """What failed, in a word: what the first tensor that differs is (``gradients``), or the class of an error."""
    for difference in record.differences:
        kind = _kind_of_path(str(difference.get("path", ""))[:500], str(difference.get("where", ""))[:200])
        if kind:
            return kind
    errors = (str(end.get("error", ""))[:200] for end in record.ranks if end.get("fate") == "raised")
    found = (re.match(r"[A-Za-z_][\w.]*(?=:|$)", error) for error in errors)
    return next((match.group().rpartition(".")[2] for match in found if match), "")


def _kind_of_path(path: str, where: str) -> str:
    """``gradients`` of ``[0] 'gradients' 'layers.0.weight'[1]``, ``weight`` of ``'0.weight'[0, 0]``.

    What stands behind whose it is, as in ``rank 0, gradients``, says it better than the name of a parameter.
    """
    names = re.findall(r"'([^']*)'", path)
    plain = [name for name in names if re.fullmatch(r"[A-Za-z_ -]+", name) and name not in _MOMENTS]
    plain += re.findall(r"^rank \d+, ([A-Za-z_ -]+)", where)
    return plain[0] if plain else names[-1].rpartition(".")[2] if names else ""
