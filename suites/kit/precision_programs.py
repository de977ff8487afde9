"""Mixed precision on ranks: what is drawn, and what runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.kit.cases import Block, Stack, TrainingCase, as_case
from suites.kit.hsdp import hsdp_meshes
from suites.kit.precision import SCALE, PrecisionCase, dtype_of
from suites.kit.programs import after_a_step, sharded, steps
from suites.kit.strategies import drawn, training_cases
from suites.oracle.situation import Trace

LOW = ("bfloat16", "float16")
#: Every pair that asks for something: what is computed in, and what is reduced in.
PAIRS = [
    (param, reduce) for param in (None, "float32", *LOW) for reduce in (None, "float32", *LOW) if (param or reduce)
]
EXACT_BLOCKS: list[tuple[Block, ...]] = [("linear",), ("linear", "linear"), ("mlp",)]


@st.composite
def precision_cases(
    draw: st.DrawFn, /, cls: type[PrecisionCase] = PrecisionCase, bias: bool | None = None, **fixed: Any
) -> Any:
    """Training in two dtypes; exact unless said otherwise (see the notes of ``precision.py``)."""
    fixed = drawn(draw, fixed)
    param, reduce = draw(st.sampled_from(fixed.pop("pairs", PAIRS)))
    own = {name: fixed.pop(name) for name in fixed.keys() - TrainingCase.__dataclass_fields__.keys()}
    blocks = draw(st.sampled_from([each for each in EXACT_BLOCKS if bias is not False or "mlp" not in each]))
    net = Stack(draw(st.integers(1, 3)), blocks, draw(st.integers(1, 2)), draw(st.booleans()) if bias is None else bias)
    fixed = {"exact": True, "dtype": "float32", "net": net, "batch": draw(st.integers(1, 2)), **fixed}
    fixed.setdefault("steps", draw(st.integers(1, 2)) if param in LOW else 1)
    return as_case(cls, draw(training_cases(**fixed)), param_dtype=param, reduce_dtype=reduce, **own)


@st.composite
def rounding_cases(draw: st.DrawFn, /, replicas: bool = False) -> PrecisionCase:
    """Sums that must be rounded as the reduce_dtype that is given; on replicas of shards, or on one axis.

    Where none is given torch reduces in param_dtype before 2.15, and since then in the dtype of parameters.
    """
    ranks: dict[str, Any] = {"mesh": hsdp_meshes(power_of_two=True)} if replicas else {}
    born = st.sampled_from([None, *LOW])
    given = [(param, reduce) for param, reduce in PAIRS if reduce]
    case: PrecisionCase = draw(precision_cases(bias=False, steps=1, born=born, pairs=given, **ranks))
    scales = [SCALE, 1.0, *[0.0] * (case.world_size - 2)]
    return replace(case, scales=tuple(draw(st.permutations(scales))))


def train(rank: Rank, case: PrecisionCase) -> Trace:
    """Shard the net in the dtype that it is born in, give it its own, then train."""
    net = sharded(rank, case, case.build().to(dtype_of(case.born) or case.torch_dtype))
    if case.born:
        asks_for(Feature.CONVERSION)
        net.to(case.torch_dtype)
    return steps(rank, case, net)


def dtypes_kept(rank: Rank, case: PrecisionCase) -> dict[str, dict[str, str]]:
    """After a step with momentum: the dtypes of parameters, gradients, optimizer state and state dict."""
    return after_a_step(rank, case, sharded(rank, case), lambda tensor: str(getattr(tensor, "dtype", None)))
