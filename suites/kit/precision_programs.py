"""Mixed precision on ranks: what is drawn, what runs, and dtypes as the layers see them.

With param_dtype bfloat16 a float32 layer must note its input, weight and bias in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from harness.worlds.rank import Rank
from suites.kit.cases import Block, NetCase, Stack, TrainingCase, as_case
from suites.kit.hsdp import hsdp_meshes
from suites.kit.precision import PrecisionCase, RoundingCase, dtype_of
from suites.kit.programs import after_a_step, apply, gradients, steps
from suites.kit.strategies import training_cases, world_sizes
from suites.oracle.layout import local
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
    """Training in two dtypes; exact unless ``cls`` is rough (see the notes of ``precision.py``)."""
    param, reduce = draw(st.sampled_from(fixed.pop("pairs", PAIRS)))
    own = {
        name: fixed.pop(name) for name in tuple(fixed) if name not in NetCase.__dataclass_fields__ and name != "steps"
    }
    blocks = draw(st.sampled_from([each for each in EXACT_BLOCKS if bias is not False or "mlp" not in each]))
    net = Stack(draw(st.integers(1, 3)), blocks, draw(st.integers(1, 2)), draw(st.booleans()) if bias is None else bias)
    fixed = {"exact": True, "dtype": "float32", "net": net, "batch": draw(st.integers(1, 2)), **fixed}
    fixed.setdefault("steps", draw(st.integers(1, 2)) if param in LOW else 1)
    fixed.setdefault("world_size", draw(world_sizes(2, power_of_two=True)))
    return as_case(cls, draw(training_cases(**fixed)), param_dtype=param, reduce_dtype=reduce, **own)


@st.composite
def rounding_cases(draw: st.DrawFn, /, replicas: bool = False) -> RoundingCase:
    """Sums that must be rounded as the reduce dtype rounds them; on replicas of shards, or on one axis."""
    mesh = draw(hsdp_meshes(power_of_two=True)) if replicas else ()
    size = mesh[0] * mesh[1] if mesh else draw(world_sizes(2, power_of_two=True))
    large, small = draw(st.permutations(range(size)))[:2]
    born = draw(st.sampled_from([None, *LOW]))
    fixed = {"world_size": size, "mesh": mesh, "large": large, "small": small, "born": born}
    case: RoundingCase = draw(precision_cases(RoundingCase, bias=False, steps=1, **fixed))
    return case


def policy_of(rank: Rank, case: TrainingCase, **more: Any) -> Any:
    """The case's policy, made as the implementation makes them."""
    make = rank.implementation.mixed_precision_policy
    assert make is not None
    return make(**case.policy, **more)


def train(rank: Rank, case: PrecisionCase) -> Trace:
    """Shard the net in the dtype that it is born in, give it its own, then train."""
    net = case.build().to(dtype_of(case.born) or case.torch_dtype)
    options = {"mp_policy": policy_of(rank, case), "reshard_after_forward": case.reshard_after_forward}
    apply(rank, case, net, **options)
    if case.born:
        net.to(case.torch_dtype)
    return steps(rank, case, net)


# Dtypes as layers see them.


class Noting(nn.Module):
    """A linear layer that notes what it is given and holds, each time it runs; it may hand on in float32."""

    def __init__(self, layer: nn.Linear, widen: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.widen = layer.weight, layer.bias, widen
        self.seen: list[dict[str, Any]] = []

    def forward(self, x: Tensor) -> Tensor:
        """Note before running, since recomputation may stop as soon as it has what it needs."""
        self.seen.append({"input": str(x.dtype), "weight": local(self.weight), "bias": local(self.bias)})
        y = functional.linear(x, self.weight, self.bias)
        return y.float() if self.widen else y


class Recomputing(nn.Sequential):
    """Runs each of its modules again in backward, instead of keeping what it computed."""

    def forward(self, x: Tensor) -> Tensor:
        """One after the other, as in any other sequence."""
        for module in self:
            x = checkpoint(module, x, use_reentrant=False)
        return x


@dataclass(frozen=True)
class NotingCase(PrecisionCase):
    """Linear layers that note. ``form`` is how they are sharded and run.

    ``plan``: as the plan says, and the root. ``grouped``: all as one list, with float32 between them. ``recomputed``:
    each by itself, and run again in backward. Their root has no policy of its own in the last two.
    """

    form: str = "plan"


@st.composite
def noting_cases(draw: st.DrawFn, form: str) -> NotingCase:
    """One to three layers, computed in another dtype than their own."""
    pairs = [(param, reduce) for param, reduce in PAIRS if param in LOW]
    choices: list[tuple[Block, ...]] = [("linear", "linear"), *EXACT_BLOCKS[: form != "grouped"]]
    blocks = draw(st.sampled_from(choices))
    net = Stack(draw(st.integers(1, 3)), blocks)
    case: NotingCase = draw(precision_cases(NotingCase, pairs=pairs, net=net, steps=1, form=form))
    return case


def noted(rank: Rank, case: NotingCase) -> dict[str, Any]:
    """What each layer noted in forward and backward, the gradients, and what an explicit ``unshard`` then registers."""
    net = shard_noting(rank, case)
    loss = case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number)
    forward = [list(layer.seen) for layer in net]
    loss.backward()
    found = {"forward": forward, "backward": [layer.seen[1:] for layer in net], "gradients": gradients(net)}
    for module in net.modules():
        if hasattr(module, "unshard"):
            module.unshard()
    return {**found, "unsharded": {name: local(p) for name, p in net.named_parameters()}}


def shard_noting(rank: Rank, case: NotingCase) -> Any:
    """The net in the case's form."""
    fully_shard, policy = rank.implementation.fully_shard, policy_of(rank, case)
    assert fully_shard is not None
    layers = [Noting(layer, widen=case.form == "grouped") for layer in case.build() if isinstance(layer, nn.Linear)]
    if case.form == "plan":
        return apply(rank, case, nn.Sequential(*layers), mp_policy=policy)
    for each in [layers] if case.form == "grouped" else layers:
        fully_shard(each, mesh=rank.mesh(), mp_policy=policy)
    net = (Recomputing if case.form == "recomputed" else nn.Sequential)(*layers)
    return fully_shard(net, mesh=rank.mesh())


def expected_notes(case: NotingCase) -> list[dict[str, Any]]:
    """What each layer must note whenever it runs: everything in what is computed in."""
    return [
        {"input": str(case.compute), "weight": low(layer.weight, case), "bias": low(layer.bias, case)}
        for layer in case.build()
        if isinstance(layer, nn.Linear)
    ]


def low(tensor: Tensor, case: PrecisionCase) -> Tensor:
    """A full parameter in what is computed in."""
    return tensor.detach().to(case.compute)


# Dtypes that stay.


def dtypes_kept(rank: Rank, case: PrecisionCase) -> dict[str, dict[str, str]]:
    """After a step with momentum: the dtypes of parameters, gradients, optimizer state and state dict."""
    net = apply(rank, case, case.build(), mp_policy=policy_of(rank, case))
    return after_a_step(rank, case, net, lambda tensor: str(getattr(tensor, "dtype", None)))
