"""What training must communicate, worked out from the case alone. Imports no ``torch.distributed``.

Of a net with block 0 sharded by itself, weight ``(3, 2)`` and bias ``(3,)`` in float32, rank 0 of two must gather once
before that block runs: it holds 2 rows of each, padded, so it sends 4 + 2 numbers::

    all_gather of 24 bytes on ranks [0, 1]

Where ranks are cut into replicas of shards, gathers and reduce-scatters stay within a replica, and all-reduces are
among the ranks that hold the same rows. What is said to a rank itself is no communication. Entries are those of
``harness/collective_trace/recorder.py``; what an implementation may choose, such as the dtype of gathered bytes and
when it waits, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from suites.kit.cases import NetCase
from suites.oracle.layout import lies_in_rows

#: How often each collective came, in words, sorted.
Counts = dict[str, int]
#: The root's group of parameters.
ROOT = "root"


@dataclass(frozen=True)
class GroupSizes:
    """How large a group of parameters is: a block's, or what is left to the root."""

    name: str
    #: How many numbers one rank holds of them, padded so that all ranks hold as many; and of those that are trained.
    numel: int
    trained: int

    @classmethod
    def of(cls, name: str, sizes: Sequence[tuple[int, bool]]) -> GroupSizes:
        """Those of parameters of so many numbers each, which are trained or not."""
        return cls(name, sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains))


def group_sizes(case: NetCase) -> list[GroupSizes]:
    """Those of the root, if it has parameters, then of the sharded blocks in the order in which they run."""
    found: dict[str, list[tuple[int, bool]]] = {group: [] for group in (ROOT, *map(str, case.sharded))}
    for name, parameter in case.build().named_parameters():
        found[case.group_of(name)].append((padded(tuple(parameter.shape), case.shards), parameter.requires_grad))
    return [GroupSizes.of(label, sizes) for label, sizes in found.items() if sizes]


def padded(shape: tuple[int, ...], shards: int) -> int:
    """How many numbers the rank with most rows holds: of 3 rows of 2 on two ranks, 4."""
    rows, *rest = shape
    numel = -(-rows // shards)
    for size in rest:
        numel *= size
    return numel


def sharers(case: NetCase, rank: int) -> list[int]:
    """The ranks that hold the net together with this one."""
    first = rank // case.shards * case.shards
    return list(range(first, first + case.shards))


def replicas(case: NetCase, rank: int) -> list[int]:
    """The ranks that hold the same rows as this one."""
    return list(range(rank % case.shards, case.world_size, case.shards))


# What was heard.


def counted(entries: Iterable[dict[str, Any]], said: Callable[[dict[str, Any]], str] | None = None) -> Counts:
    """How often each collective came, without those that carry no data."""
    return tallied((said or in_words)(as_meant(each)) for each in entries if not tells_nothing(each))


def tells_nothing(entry: dict[str, Any]) -> bool:
    """Whether nothing gets from one rank to another: said to itself, or a barrier, which carries no numbers."""
    return len(entry.get("ranks", ())) < 2 or entry["op"] == "barrier"


def as_meant(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry; an all-to-all, of which ranks add up what they get, as the reduce-scatter that it is made for.

    Of two ranks' all-to-all of four numbers each, the two sums are two numbers: as many are sent either way.
    """
    if entry["op"] != "all_to_all":
        return entry
    output = {**entry["output"], "numel": entry["output"]["numel"] // len(entry["ranks"])}
    return {**entry, "op": "reduce_scatter", "output": output}


def tallied(said: Iterable[str]) -> Counts:
    """How often each word came, in sorted order."""
    return dict(sorted(Counter(said).items()))


def in_words(entry: dict[str, Any]) -> str:
    """What counts in a collective: a gather's bytes, a reduction's numbers and dtype, and its members."""
    if entry["op"] in ("reduce_scatter", "all_reduce"):
        return words(entry["op"], entry["output"]["numel"], entry["output"]["dtype"], entry["ranks"])
    return words(entry["op"], entry["input"]["bytes"], "bytes", entry["ranks"])


def words(op: str, count: int, what: str, ranks: list[int]) -> str:
    """A collective of so many bytes, or numbers of a dtype; of how many is open where rows need not lie as torch's."""
    return f"{op} of {f'{count} ' if lies_in_rows() else ''}{what} on ranks {ranks}"


def by_op(entry: dict[str, Any]) -> str:
    """Only which collective, and among whom."""
    return f"{entry['op']} on ranks {entry['ranks']}"


# What is expected.


def gathers(case: NetCase, rank: int, which: Iterable[GroupSizes], itemsize: int | None = None) -> list[str]:
    """One gather of each group."""
    ranks, size = sharers(case, rank), itemsize or case.torch_dtype.itemsize
    return [words("all_gather", group.numel * size, "bytes", ranks) for group in which] if len(ranks) > 1 else []


def reductions(case: NetCase, rank: int, which: Iterable[GroupSizes], dtype: str, across: bool) -> list[str]:
    """One reduction of each group that has something trained: among sharers, then, if ``across``, among replicas."""
    inner, outer = sharers(case, rank), replicas(case, rank)
    trained = [group.trained for group in which if group.trained]
    within = [words("reduce_scatter", numel, dtype, inner) for numel in trained] if len(inner) > 1 else []
    return within + [words("all_reduce", numel, dtype, outer) for numel in trained if len(outer) > 1 and across]
