"""Activation checkpointing of plain nets: the net, what is asked and drawn, and what runs on ranks.

A chain of two layers of which the second is recomputed runs so::

    forward     layer 0, layer 1        kept: the activations of layer 0, the inputs of layer 1
    backward    layer 1 again, then its gradients; then those of layer 0
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import dropout

from harness.data.case import Case
from harness.worlds.rank import Rank
from suites.kit.cases import draw, fill
from suites.kit.expected_collectives import tallied, tells_nothing
from suites.kit.programs import gradients

#: The layers of a chain of three, and what else can be recomputed of it.
LAYERS = ("layers.0", "layers.1", "layers.2")
PLACES = (*LAYERS, "layers.1.linear", "")


@dataclass(frozen=True)
class RecomputeCase(Case):
    """A chain of layers, of which those at ``recomputed`` are given to ``checkpoint`` with these options.

    With ``twice``, the chain runs its first layer once more at its end. If ``sharded``, so are the layers in which
    anything is recomputed, which compute in the dtype ``low`` if there is one, and the root. If ``copied``, a copy is
    trained, as of an average of weights, and the original is all zeros. If ``evaluated``, it is in eval mode. Layers
    that are ``frozen`` do not train.
    """

    world_size: int = 1
    dim: int = 2
    layers: int = 2
    recomputed: tuple[str, ...] = ("layers.1",)
    dropout: float = 0.0
    twice: bool = False
    input_gradients: bool = True
    preserve_rng_state: bool = True
    early_stop: bool = True
    determinism_check: str = "default"
    keyword: str = ""
    seed: int = 0
    sharded: bool = False
    checkpoint_first: bool = True
    copied: bool = False
    evaluated: bool = False
    reshard_after_forward: bool = True
    low: str = ""
    frozen: tuple[str, ...] = ()

    def build(self) -> Chain:
        """The chain with weights drawn from the seed."""
        net = Chain(self.dim, self.layers, self.dropout, self.twice)
        fill(net, self.seed, exact=False)
        for place in self.frozen:
            net.get_submodule(place).requires_grad_(False)
        return net

    def inputs(self, rank: Rank) -> list[Tensor]:
        """The two tensors that one rank's chain is given; only the first may need gradients."""
        first, second = (draw((3, self.dim), self.seed + 2 * rank.number + i, exact=False).float() for i in (1, 2))
        return [first.to(rank.device).requires_grad_(self.input_gradients), second.to(rank.device)]

    def options(self) -> dict[str, Any]:
        """The keywords that ``checkpoint`` is called with, if they are not its defaults; ``keyword`` is one more."""
        named = {name: getattr(self, name) for name in ("preserve_rng_state", "early_stop", "determinism_check")}
        chosen = {name: value for name, value in named.items() if value != getattr(RecomputeCase, name)}
        return {**chosen, **({self.keyword: True} if self.keyword else {})}


@st.composite
def recompute_cases(draw: st.DrawFn, /, places: Sequence[str] = PLACES, **fixed: Any) -> RecomputeCase:
    """Chains of up to three layers, of which any of ``places`` may be recomputed, also one within another."""
    layers = draw(st.integers(1, 3))
    there = [place for place in places if place not in LAYERS[layers:] and (layers > 1 or "1" not in place)]
    return RecomputeCase(**{
        "dim": draw(st.integers(1, 4)),
        "layers": layers,
        "recomputed": tuple(draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True))),
        "twice": draw(st.booleans()),
        "input_gradients": draw(st.booleans()),
        "early_stop": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
        **fixed,
    })  # fmt: skip


@st.composite
def sharded_cases(draw: st.DrawFn, /, **fixed: Any) -> RecomputeCase:
    """Chains that are sharded and recomputed in either order, some layers of them with dropout if that is not fixed."""
    first, frees = draw(st.tuples(st.booleans(), st.booleans()))
    fixed = {"dropout": 0.5, "checkpoint_first": first, "reshard_after_forward": frees, **fixed}
    return draw(recompute_cases(LAYERS, world_size=2, sharded=True, **fixed))  # of two parts sums are always the same


def cast_cases() -> st.SearchStrategy[RecomputeCase]:
    """Any low dtype in the last of two layers, and ``checkpoint`` there or further inside."""
    pairs = st.tuples(st.sampled_from(["layers.1", "layers.1.linear"]), st.sampled_from(["float16", "bfloat16"]))
    fixed = {"dropout": 0.0, "layers": 2, "twice": False}
    return pairs.flatmap(lambda pair: sharded_cases(recomputed=pair[:1], low=pair[1], **fixed))


class Noting(nn.Linear):
    """A Linear that notes in which dtype it runs."""

    log: list[str]

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        self.log.append(run_in(x))
        return super().forward(x)


def run_in(x: Tensor) -> str:
    """A run on this tensor in words."""
    return f"run in {x.dtype}"


class Layer(nn.Module):
    """Two tensors and a keyword in, two tensors out: ``(dropout(tanh(linear(a · scale))) · scale, b + a)``.

    It logs its runs, fails in the requested one, and remembers the memory of its activations. No module says that it
    drops anything.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.log: list[str]
        self.linear = Noting(dim, dim)
        self.dropout = dropout
        self.linear.log, self.log = [], []
        self.fails_in: int | None = None
        self.activations: list[StorageWeakRef] = []

    def forward(self, a: Tensor, b: Tensor, *, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """The next two tensors."""
        self.log.append(run_in(a))
        if len(self.log) == self.fails_in:
            raise ArithmeticError(f"run {self.fails_in} fails")
        inner = torch.tanh(self.linear(a * scale))
        self.activations.append(StorageWeakRef(inner.untyped_storage()))
        return dropout(inner, self.dropout, self.training) * scale, b + a


class Chain(nn.Module):
    """Layers that hand each other two tensors; the result is their product.

    ``returned`` has for each module whether ``checkpoint`` has returned what it was given.
    """

    def __init__(self, dim: int, layers: int, dropout: float, twice: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim, dropout) for _ in range(layers))
        self.twice = twice
        self.log: list[str] = []
        self.returned: list[bool] = []

    @property
    def each(self) -> list[Layer]:
        """The layers in order."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """``(…, dim)`` twice to the same once."""
        self.log.append(run_in(a))
        for place, layer in enumerate(self.each + self.each[:1] * self.twice):
            a, b = layer(a, b, scale=1.0 + place)
        return a * b


def chain(rank: Rank, case: RecomputeCase, recompute: bool = True) -> Chain:
    """The chain on the rank's device, sharded if the case says so, with what it recomputes given to ``checkpoint``."""
    net = case.build().to(rank.device)
    if case.sharded and not case.checkpoint_first:
        shard(rank, case, net)
    for module in [net.get_submodule(place) for place in case.recomputed if recompute]:
        net.returned.append(checkpointed(rank, module, **case.options()) is module)
    if case.copied:
        original, net = net, copy.deepcopy(net)
        torch._foreach_zero_([parameter.data for parameter in original.parameters()])
    if case.sharded and case.checkpoint_first:
        shard(rank, case, net)
    return net.train(not case.evaluated)


def shard(rank: Rank, case: RecomputeCase, net: Chain) -> None:
    """Shard the layers in which anything is recomputed, and the root."""
    subject = rank.implementation
    for place in (*dict.fromkeys(place.removesuffix(".linear") for place in case.recomputed), ""):
        options: dict[str, Any] = {"mesh": rank.mesh(), "reshard_after_forward": case.reshard_after_forward}
        if case.low:
            dtype = getattr(torch, case.low if place else "float32")
            options["mp_policy"] = subject.mixed_precision_policy(param_dtype=dtype, cast_forward_inputs=True)
        subject.fully_shard(net.get_submodule(place), **options)


def checkpointed(rank: Rank, module: nn.Module, **options: Any) -> Any:
    """What ``checkpoint`` returns for a module."""
    return rank.implementation.checkpoint(module, **options)


def once(rank: Rank, case: RecomputeCase, net: Chain, backward: bool = True) -> dict[str, Any]:
    """What a forward and backward from a seed leave: output, gradients, and the random numbers that come next.

    And what can be seen of the net, how often each module ran in which dtype, how many activations of each layer
    forward kept, and which collectives were made. Between forward and backward random numbers are drawn, as a user may.
    """
    torch.manual_seed(case.seed + rank.number)
    inputs = case.inputs(rank)
    with rank.collectives() as entries, torch.set_grad_enabled(backward):
        output = net(*inputs)
        torch.rand(3, device=rank.device)
        kept = [sum(not activation.expired() for activation in layer.activations) for layer in net.each]
        if backward:
            output.sum().backward()
    given, next_numbers = inputs[0].grad, torch.rand(3, device=rank.device)
    results = {"output": output.detach(), "gradients": gradients(net), "next random numbers": next_numbers}
    return {
        "results": {**results, "input gradient": None if given is None else given.clone()},
        "looks": described(net),
        "returned the module": net.returned,
        "runs": runs(net),
        "activations kept": kept,
        "collectives": tallied(entry["op"] for entry in entries if not tells_nothing(entry)),
    }


def both(rank: Rank, case: RecomputeCase, backward: bool = True) -> list[dict[str, Any]]:
    """What training leaves without recomputation and with it; or a forward without gradients."""
    return [once(rank, case, chain(rank, case, recompute), backward) for recompute in (False, True)]


def runs(net: Chain) -> dict[str, dict[str, int]]:
    """How often each module has run in which dtype."""
    noting = (Chain, Layer, Noting)
    return {name: dict(Counter(each.log)) for name, each in net.named_modules() if isinstance(each, noting)}


def expected_runs(case: RecomputeCase, recomputing: bool) -> dict[str, dict[str, int]]:
    """What must be noted of runs: what is recomputed runs once more for each of its runs, and the last layer in low."""
    found = {}
    for name in ("", *(f"{layer}{part}" for layer in LAYERS[: case.layers] for part in ("", ".linear"))):
        dtype = case.low if case.low and name.startswith("layers.1") else "float32"
        again = recomputing and any(f"{name}.".startswith(f"{place}.".lstrip(".")) for place in case.recomputed)
        found[name] = {f"run in torch.{dtype}": (1 + (case.twice and name.startswith("layers.0"))) * (1 + again)}
    return found


def expected_kept(case: RecomputeCase) -> list[int]:
    """How many activations each layer keeps: none if it is recomputed, else one for each run."""
    return [
        0 if layer in case.recomputed else 1 + (case.twice and layer == LAYERS[0]) for layer in LAYERS[: case.layers]
    ]


def described(net: nn.Module) -> dict[str, Any]:
    """All that a user can see of a net from outside: names, classes, and the keys of its state dict."""
    return {
        "modules": [f"{name}: {type(module).__name__}" for name, module in net.named_modules()],
        "parameters": [name for name, _ in net.named_parameters()],
        "state dict": list(net.state_dict()),
    }


def after_a_failure(rank: Rank, case: RecomputeCase, fails_in: int) -> dict[str, Any]:
    """A pass in which the last layer's run ``fails_in`` raises; then what the next one leaves."""
    net = chain(rank, case)
    raised, net.each[-1].fails_in = "nothing", fails_in
    try:
        net(*case.inputs(rank)).sum().backward()
    except ArithmeticError as error:
        raised = str(error)
    net.each[-1].fails_in = None
    for log in (net.log, *(each for layer in net.each for each in (layer.log, layer.linear.log))):
        log.clear()
    net.zero_grad()
    return {"raised": raised, **once(rank, case, net)}
