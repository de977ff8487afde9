"""Nets with experts, and what training them gives without any ranks. Imports no ``torch.distributed``.

Dense layers are the same everywhere; of ``ep`` experts, rank ``r`` has expert ``r % ep`` and no other. On four ranks
with two experts, dense rows are cut over all four ranks, and an expert's over the two ranks that have it::

    rank 0: dense 0 of 4, expert A 0 of 2    rank 1: dense 1, expert B 0    rank 2: dense 2, A 1    rank 3: dense 3, B 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from reference_models.nets import MLP
from suites.kit.cases import Stack, TrainingCase, fill
from suites.kit.strategies import training_cases
from suites.oracle.layout import shard


class Stacked(nn.Module):
    """One linear layer for each expert, in one parameter ``(experts, dim, dim)``, of which the first here is used."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        here = self.weight.to_local() if hasattr(self.weight, "to_local") else self.weight
        return x @ here[0]


class ExpertBlock(nn.Module):
    """A dense layer that all ranks have, and then an expert."""

    def __init__(self, dim: int, multiplier: int, bias: bool, stacked: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim, bias=bias)
        self.expert = Stacked(dim) if stacked else MLP(dim, multiplier, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """``(…, dim)`` to the same."""
        out: Tensor = self.expert(torch.relu(self.dense(x)))
        return out


@dataclass(frozen=True)
class ExpertCase(TrainingCase):
    """``net`` says the sizes, and by its blocks how many there are.

    ``cut`` is the dim along which weights of experts are cut; ``says`` is what the placement function answers for dense
    parameters: nothing, a placement, or a placement with a mesh. ``stacked`` makes an expert's weight one of a stack.
    """

    ep: int = 2
    cut: int = 0
    says: str = "nothing"
    stacked: bool = False

    @property
    def copies(self) -> int:
        """How many ranks have the same expert."""
        return self.world_size // self.ep

    def build(self, expert: int = 0) -> nn.Sequential:
        """The net of the ranks that have ``expert``."""
        sizes = (self.net.dim, self.net.multiplier, self.net.bias, self.stacked)
        net = nn.Sequential(*(ExpertBlock(*sizes) for _ in self.net.blocks)).to(self.torch_dtype)
        fill(net, self.seed, self.exact)
        for place, block in enumerate(net):
            fill(block.expert, self.seed + 1 + place * self.ep + expert, self.exact)  # type: ignore[arg-type]
        return net

    def cut_of(self, name: str) -> int:
        """The dim along which a parameter is cut."""
        return self.cut if is_expert(name) and name.endswith("weight") else 0

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What rank ``rank`` holds of a parameter, ``full`` being that of its own expert."""
        if is_expert(name):
            return shard(full, self.copies, rank // self.ep, self.cut_of(name))
        return shard(full, self.world_size, rank)


def is_expert(name: str) -> bool:
    """Whether a parameter of this name is an expert's."""
    return ".expert." in name


@st.composite
def expert_cases(draw: st.DrawFn, /, stacked: bool = False, **fixed: Any) -> ExpertCase:
    """Blocks of integers: one, of these sizes, has activations below 2**12, gradients below 2**20 that are multiples of
    2**-2, and weights after a step that are multiples of 2**-5, so that 24 bits hold every sum (see ``tolerance.py``).

    Where weights are cut along dim 1, ranks must divide it.
    """
    world_size, ep = draw(st.sampled_from([(4, 2), (4, 2), (2, 2), (4, 4)])) if "ep" not in fixed else (4, fixed["ep"])
    cut = 1 if stacked else draw(st.sampled_from([0, 0, 1]))
    whole = world_size // ep if cut else 1
    dim = draw(st.integers(1, 4).map(lambda dim: -(-dim // whole) * whole))
    net = Stack(dim, ("mlp",), multiplier=draw(st.integers(1, 2)), bias=draw(st.booleans()))
    reshard = draw(st.sampled_from([True, None, False]))
    fixed = {"net": net, "world_size": world_size, "reshard_after_forward": reshard, **fixed}
    extra = {"ep": fixed.pop("ep", ep), "cut": cut, "stacked": stacked}
    case = draw(training_cases(exact=True, **fixed))
    own = {name: getattr(case, name) for name in TrainingCase.__dataclass_fields__}
    return ExpertCase(**own, **extra, says=draw(st.sampled_from(["nothing", "placement", "mesh"])))


def train_all(case: ExpertCase, microbatches: int = 1) -> list[list[dict[str, Any]]]:
    """For each expert, what the ranks that have it see; dense gradients are means over all, an expert's over its own.

    With more than one microbatch a step's gradients are sums over them, and its losses those of the last.
    """
    nets = [case.build(expert) for expert in range(case.ep)]
    steps = [_step(nets, case, step, microbatches) for step in range(case.steps)]
    return [[step[expert] for step in steps] for expert in range(case.ep)]


def _step(nets: list[nn.Sequential], case: ExpertCase, step: int, microbatches: int) -> list[dict[str, Any]]:
    totals = [{name: torch.zeros_like(p) for name, p in net.named_parameters()} for net in nets]
    losses: list[Tensor] = []
    for place in range(microbatches):
        losses = [_add(nets, totals, case, step * microbatches + place, rank) for rank in range(case.world_size)]
    full = []
    for net, total in zip(nets, totals, strict=True):
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.sub_(case.learning_rate * total[name])
        after = {name: p.detach().clone() for name, p in net.named_parameters()}
        full.append(
            {"losses": losses, "gradients": {name: t.detach() for name, t in total.items()}, "parameters": after}
        )
    return full


def _add(nets: list[nn.Sequential], totals: list[dict[str, Tensor]], case: ExpertCase, step: int, rank: int) -> Tensor:
    """Add one rank's gradients to the means; its loss."""
    own = nets[rank % case.ep]
    loss = case.loss(own(case.inputs(step, rank)), step, rank)
    grads = torch.autograd.grad(loss, list(own.parameters()))
    for name, grad in zip(totals[0], grads, strict=True):
        if is_expert(name):
            totals[rank % case.ep][name] = totals[rank % case.ep][name] + grad / case.copies
        else:
            for total in totals:
                total[name] = total[name] + grad / case.world_size
    return loss.detach()


def on_rank(case: ExpertCase, steps: list[list[dict[str, Any]]], number: int) -> list[dict[str, Any]]:
    """What rank ``number`` must see."""

    def own(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: case.part(number, name, tensor) for name, tensor in tensors.items()}

    return [
        {"loss": s["losses"][number], "gradients": own(s["gradients"]), "parameters": own(s["parameters"])}
        for s in steps[number % case.ep]
    ]
