"""Activation checkpointing of plain nets: the net, what is asked, and what runs on ranks.

A chain of two layers of which the second is recomputed runs so::

    forward     layer 0, layer 1        kept: the activations of layer 0, the inputs of layer 1
    backward    layer 1 again, then its gradients; then those of layer 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from harness.data.case import Case
from harness.worlds.rank import Rank
from suites.kit.cases import draw, fill
from suites.kit.programs import gradients


@dataclass(frozen=True)
class RecomputeCase(Case):
    """A chain of layers, of which those at ``recomputed`` are given to ``checkpoint`` with these options.

    With ``twice``, the chain runs its first layer once more at its end. If ``sharded``, so are the layers in which
    anything is recomputed, which compute in the dtype ``low`` if there is one, and the root.
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
    seed: int = 0
    sharded: bool = False
    checkpoint_first: bool = True
    reshard_after_forward: bool = True
    low: str = ""

    def build(self) -> Chain:
        """The chain with weights drawn from the seed."""
        net = Chain(self.dim, self.layers, self.dropout, self.twice)
        fill(net, self.seed, exact=False)
        return net

    def inputs(self, rank: Rank) -> list[Tensor]:
        """The two tensors that one rank's chain is given; only the first may need gradients."""
        first, second = (draw((3, self.dim), self.seed + 2 * rank.number + i, exact=False).float() for i in (1, 2))
        return [first.to(rank.device).requires_grad_(self.input_gradients), second.to(rank.device)]

    def options(self) -> dict[str, Any]:
        """The keywords that ``checkpoint`` is called with."""
        return {"preserve_rng_state": self.preserve_rng_state, "early_stop": self.early_stop}


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
    """Two tensors and a keyword in, two tensors out: ``(dropout(tanh(linear(a))) · scale, b + a)``.

    It logs its runs, fails in the requested one, and remembers the memory of its activations.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.log: list[str]
        self.linear = Noting(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.linear.log, self.log = [], []
        self.fails_in: int | None = None
        self.activations: list[StorageWeakRef] = []

    def forward(self, a: Tensor, b: Tensor, *, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """The next two tensors."""
        self.log.append(run_in(a))
        if len(self.log) == self.fails_in:
            raise ArithmeticError(f"run {self.fails_in} fails")
        inner = torch.tanh(self.linear(a))
        self.activations.append(StorageWeakRef(inner.untyped_storage()))
        return self.dropout(inner) * scale, b + a


class Chain(nn.Module):
    """Layers that hand each other two tensors; the result is their product."""

    def __init__(self, dim: int, layers: int, dropout: float, twice: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim, dropout) for _ in range(layers))
        self.twice = twice
        self.log: list[str] = []

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
    for place in case.recomputed if recompute else ():
        checkpointed(rank, net.get_submodule(place), **case.options())
    if case.sharded and case.checkpoint_first:
        shard(rank, case, net)
    return net


def shard(rank: Rank, case: RecomputeCase, net: Chain) -> None:
    """Shard the layers in which anything is recomputed, and the root."""
    subject = rank.implementation
    for place in (*dict.fromkeys(place.removesuffix(".linear") for place in case.recomputed), ""):
        options: dict[str, Any] = {"mesh": rank.mesh(), "reshard_after_forward": case.reshard_after_forward}
        if case.low:
            dtype = getattr(torch, case.low if place else "float32")
            assert subject.mixed_precision_policy is not None
            options["mp_policy"] = subject.mixed_precision_policy(param_dtype=dtype, cast_forward_inputs=True)
        assert subject.fully_shard is not None
        subject.fully_shard(net.get_submodule(place), **options)


def checkpointed(rank: Rank, module: nn.Module, **options: Any) -> Any:
    """What ``checkpoint`` returns for a module."""
    assert rank.implementation.checkpoint is not None
    return rank.implementation.checkpoint(module, **options)


def trained(rank: Rank, case: RecomputeCase, net: Callable[..., Tensor]) -> dict[str, Any]:
    """After forward and backward from a seed: the output, all gradients, and the random numbers that come next.

    Between forward and backward random numbers are drawn, as a user may.
    """
    assert isinstance(net, nn.Module)
    torch.manual_seed(case.seed + rank.number)
    inputs = case.inputs(rank)
    output = net(*inputs)
    torch.rand(3, device=rank.device)
    output.sum().backward()
    next_numbers = torch.rand(3, device=rank.device)
    given = inputs[0].grad
    return {
        "output": output.detach(),
        "gradients": gradients(net),
        "input gradient": None if given is None else given.clone(),
        "next random numbers": next_numbers,
    }


def both(rank: Rank, case: RecomputeCase) -> list[dict[str, Any]]:
    """What training gives without recomputation and with it."""
    return [trained(rank, case, chain(rank, case, recompute)) for recompute in (False, True)]


def noted(rank: Rank, case: RecomputeCase) -> list[dict[str, Any]]:
    """Without recomputation and with it: how often each module ran in which dtype, and this rank's gradients."""
    found = []
    for recompute in (False, True):
        net = chain(rank, case, recompute)
        gradients_of = trained(rank, case, net)["gradients"]
        logs = {name: module.log for name, module in net.named_modules() if isinstance(module, (Chain, Layer, Noting))}
        found.append({"seen": {name: dict(Counter(log)) for name, log in logs.items()}, "gradients": gradients_of})
    return found


def expected_casts(case: RecomputeCase, recompute: bool) -> dict[str, dict[str, int]]:
    """What must be noted of two layers: float32 but for the last, which runs twice where it is recomputed."""
    [place] = case.recomputed
    dtypes = dict.fromkeys(("", "layers.0", "layers.0.linear"), "float32")
    dtypes.update(dict.fromkeys(("layers.1", "layers.1.linear"), case.low))
    again = {name for name in dtypes if recompute and name.startswith(place)}
    return {name: {f"run in torch.{dtype}": 1 + (name in again)} for name, dtype in dtypes.items()}


def work(rank: Rank, case: RecomputeCase) -> dict[str, list[int]]:
    """How often each layer has run after forward and after backward, and how many activations forward has kept."""
    net = chain(rank, case)
    output = net(*case.inputs(rank))
    after_forward = runs(net)
    kept = [sum(not activation.expired() for activation in layer.activations) for layer in net.each]
    output.sum().backward()
    return {"runs in forward": after_forward, "activations kept": kept, "runs in all": runs(net)}


def runs(net: Chain) -> list[int]:
    """How often each layer has run."""
    return [len(layer.log) for layer in net.each]


def expected_work(case: RecomputeCase) -> dict[str, list[int]]:
    """Recomputed layers keep nothing and run again for each run; the others keep what they must."""
    once = [2 if case.twice and place == 0 else 1 for place in range(case.layers)]
    again = [f"layers.{place}" in case.recomputed or "" in case.recomputed for place in range(case.layers)]
    return {
        "runs in forward": once,
        "activations kept": [0 if twice else count for count, twice in zip(once, again, strict=True)],
        "runs in all": [2 * count if twice else count for count, twice in zip(once, again, strict=True)],
    }


def without_gradients(rank: Rank, case: RecomputeCase) -> dict[str, Any]:
    """Under ``no_grad``: the outputs of the plain and the recomputed chain, and how often layers of the latter ran."""
    with torch.no_grad():
        plain = chain(rank, case, recompute=False)(*case.inputs(rank))
        net = chain(rank, case)
        output = net(*case.inputs(rank))
    return {"plain": plain, "recomputed": output, "runs": runs(net)}


def described(net: nn.Module) -> dict[str, Any]:
    """All that a user can see of a net from outside: names, classes, and the keys of its state dict."""
    return {
        "modules": [f"{name}: {type(module).__name__}" for name, module in net.named_modules()],
        "parameters": [name for name, _ in net.named_parameters()],
        "state dict": list(net.state_dict()),
    }


def looks(rank: Rank, case: RecomputeCase) -> dict[str, Any]:
    """What is seen of the net before and after, and whether ``checkpoint`` returned the module it was given."""
    net = case.build()
    before = described(net)
    same = [checkpointed(rank, module) is module for module in (net.get_submodule(at) for at in case.recomputed)]
    return {"before": before, "after": described(net), "returned the module": same}


def after_a_failure(rank: Rank, case: RecomputeCase, fails_in: int) -> dict[str, Any]:
    """A pass in which the last layer's run ``fails_in`` raises; then training of the same net, and how often it ran."""
    net = chain(rank, case)
    raised, net.each[-1].fails_in = "nothing", fails_in
    try:
        net(*case.inputs(rank)).sum().backward()
    except ArithmeticError as error:
        raised = str(error)
    for layer in net.each:
        layer.fails_in, layer.log = None, []
    net.zero_grad()
    found = trained(rank, case, net)
    return {"raised": raised, "trained": found, "runs": runs(net)}
