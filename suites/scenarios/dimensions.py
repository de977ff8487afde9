"""The dimensions of a training situation, and the values of each.

The first value of a dimension is its default: nothing special. A new feature is a new entry here, and what it does in
``bodies.py``, ``script.py`` or ``sharding.py``; what cannot go with it is in ``rules.py``. Imports no
``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.vendor import Feature


@dataclass(frozen=True)
class Value:
    """One value of a dimension; the features that an implementation must claim for it, and the ranks that it takes.

    ``cost`` is how many combinations it has to add to a scenario more than others: so few scenarios have what is slow.
    """

    name: str
    needs: tuple[Feature, ...] = ()
    ranks: int = 1
    cost: int = 0


def _values(*plain: str, **needing: Feature) -> tuple[Value, ...]:
    return (
        *(Value(name) for name in plain),
        *(Value(name.replace("_", " "), (need,)) for name, need in needing.items()),
    )


_POLICY = (Feature.MIXED_PRECISION,)
#: What parameters on two meshes need.
TWO_MESHES = (Feature.HSDP, Feature.SHARD_PLACEMENT, Feature.PARAMETER_MESH, Feature.ROW_LAYOUT)

#: Each dimension, by the name of its field of ``Scenario``. An optimizer tells a gradient of zeros from none.
DIMENSIONS: dict[str, tuple[Value, ...]] = {
    "net": (
        *_values("linear", "attention", "convolution"),
        Value("embedding", (Feature.UNEVEN_ROWS,)),  # of five words
        *_values("norms", "tied", unused=Feature.NONE_FOR_UNUSED),
        *_values("frozen", "empty", "held", dtypes=Feature.OTHER_DTYPES),
    ),
    "runs": _values("once", "twice", "no grad", "eval", skipped=Feature.NONE_FOR_UNUSED, method=Feature.FORWARD_METHOD),
    "wrapping": (*_values("blocks", "parts", "root", "wrapper", list=Feature.MODULE_LISTS), Value("shared")),
    "modules": _values("plain", "hooks before", "hooks after", "backward hooks", "other forward"),
    "mesh": (
        Value("2", ranks=2),
        Value("1"),
        Value("3", ranks=3),
        Value("4", ranks=4),
        Value("2x2", (Feature.HSDP,), 4),
        Value("1x2", (Feature.HSDP,), 2),
        Value("2x1", (Feature.HSDP,), 2),
    ),
    "parallelism": (
        Value("data"),
        Value("tensor", (Feature.TENSOR_PARALLEL,), 2, cost=6),
        Value("two meshes", TWO_MESHES, 2, cost=6),
    ),
    "rows": (
        Value("even"),
        *(Value(name, (Feature.UNEVEN_ROWS,)) for name in ("uneven", "fewer")),
        Value("columns", (Feature.SHARD_PLACEMENT,)),
    ),
    "dtype": (
        Value("float64", (Feature.OTHER_DTYPES,)),
        *_values("float32", "autocast"),
        Value("bfloat16", (Feature.OTHER_DTYPES,)),
        *(Value(name, (*_POLICY, Feature.INPUT_CASTING)) for name in ("param", "param and reduce")),
        Value("reduce", _POLICY),
        Value("output", (*_POLICY, Feature.INPUT_CASTING, Feature.OUTPUT_DTYPE)),
        Value("wider", (*_POLICY, Feature.INPUT_CASTING)),
    ),
    "inputs": _values("tensor", "nested", "dataclass", "subclass"),
    "reshard": (
        *_values("default", "always", "never", changed=Feature.UNSHARD, in_place=Feature.KEPT_STORAGE),
        Value("pairs", (Feature.RESHARD_TO_GROUP,), 4),
    ),
    "recompute": (
        *_values("none", "around", "selective", "reentrant", "saved elsewhere"),
        *(Value(name, (Feature.CHECKPOINT,)) for name in ("block", "part")),
    ),
    "prefetch": (
        Value("default"),
        *(Value(name, (Feature.PREFETCH,)) for name in ("forward", "backward", "both", "finished")),
    ),
    "gradients": (
        *_values("plain", "two losses", unsynchronised=Feature.ACCUMULATION),
        Value("last backward", (Feature.ACCUMULATION, Feature.LAST_BACKWARD)),
        Value("finalized", (Feature.ACCUMULATION, Feature.MANUAL_FINALIZATION)),
        Value("no all-reduce", (Feature.ACCUMULATION, Feature.HSDP)),
    ),
    "reduction": _values(
        "mean", factor=Feature.DIVIDE_FACTOR, sums=Feature.FORCE_SUM, unused_too=Feature.UNUSED_PARAMETERS
    ),
    "update": _values("plain", "hooks", clipped=Feature.DTENSORS),
    "offload": _values("none", cpu=Feature.CPU_OFFLOAD),
    "life": (
        *_values("plain", "frozen and thawed", moved=Feature.CONVERSION),
        Value("converted", (Feature.CONVERSION, Feature.OTHER_DTYPES)),
        Value("loaded", (Feature.STATE_DICT,)),
        Value("meta", (Feature.META_DEVICE, Feature.STATE_DICT)),
        *(Value(name, (Feature.RESET,)) for name in ("exception", "exception in backward")),
    ),
    "asked": (
        Value("never"),
        *(
            Value(name, (Feature.STATE_DICT,))
            for name in ("before", "after forward", "between", "after backward", "after step", "twice")
        ),
    ),
    "form": _values("sharded", "full", "rank zero"),
    "optimizer": _values("SGD", "momentum", "Adam", "AdamW", "groups", "reversed", "left out"),
    "groups": _values("default", "from group", "after others", separate=Feature.SEPARATE_GROUP),
}

#: The value of every dimension that is nothing special.
DEFAULTS = {name: values[0].name for name, values in DIMENSIONS.items()}

#: Meshes with replicas; on which one rank has all rows; of which two neighbours can share a block by tensor
#: parallelism, and of these the ones on which one rank has all other rows then.
REPLICATED = ("2x2", "1x2", "2x1")
UNCUT = ("1", "2x1")
PAIRED = ("2", "4", "2x2", "1x2")
UNCUT_IF_PAIRED = ("2", "2x2", "1x2")


def values_of(name: str) -> Iterator[str]:
    """The names of a dimension's values, the default first."""
    return (value.name for value in DIMENSIONS[name])


def value(name: str, chosen: str) -> Value:
    """The declared value of a dimension. Raises ValueError if there is none of this name."""
    for one in DIMENSIONS[name]:
        if one.name == chosen:
            return one
    raise ValueError(f"expected {name} to be one of {', '.join(values_of(name))}; got {chosen!r}")
