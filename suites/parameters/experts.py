"""Nets with experts: every parameter is sharded over the mesh that its placement names.

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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from harness.worlds.rank import Rank
from reference_models.nets import MLP
from suites.kit.cases import Stack, as_case, fill
from suites.kit.expected_collectives import counted
from suites.kit.own_collectives import Counting, OwnGather
from suites.kit.programs import ShardedStack, layout
from suites.kit.strategies import training_cases
from suites.oracle.layout import shard
from suites.oracle.sharded import Resting
from suites.parameters.apart import ApartCase


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
class ExpertCase(ApartCase):
    """``net`` says the sizes, and by its blocks how many there are.

    ``cut`` is the dim along which weights of experts are cut; ``says`` is what the placement function answers for dense
    parameters: nothing, a placement, both, or a mesh alone, as then for experts cut along their rows.
    ``stacked`` makes an expert's weight one of a stack. On replicas, experts are cut over the same ranks as all else,
    or ``across``: over those that hold the same rows of all else, so that meshes of one module cross.
    """

    ep: int = 2
    cut: int = 0
    says: str = "nothing"
    stacked: bool = False
    replicated: bool = False
    across: bool = False

    @property
    def values(self) -> int:
        """As many as experts."""
        return self.shards if self.across else self.ep

    @property
    def shards(self) -> int:
        """Into how many parts dense parameters are cut."""
        return self.world_size // self.ep if self.replicated else self.world_size

    def value_of(self, rank: int) -> int:
        """Every other rank's, or that of neighbours."""
        return rank // self.shards if self.replicated and not self.across else super().value_of(rank)

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """A part of an expert, or of what all ranks have."""
        if not self.replicated or (self.across and is_expert(name)):
            return super().part(rank, name, full)
        return shard(self.whole_of(rank, name, full), self.shards, rank % self.shards, self.cut_of(name))

    def build_value(self, value: int) -> nn.Sequential:
        """The net of the ranks that have this expert."""
        sizes = (self.net.dim, self.net.multiplier, self.net.bias, self.stacked)
        net = nn.Sequential(*(ExpertBlock(*sizes) for _ in self.net.blocks)).to(self.torch_dtype)
        fill(net, self.seed, self.exact)
        for place, block in enumerate(net):
            fill(block.expert, self.seed + 1 + place * self.ep + value, self.exact)  # type: ignore[arg-type]
        return net

    def is_apart(self, name: str) -> bool:
        """Experts are."""
        return is_expert(name)

    def cut_of(self, name: str) -> int:
        """The dim along which a parameter is cut."""
        return self.cut if is_expert(name) and name.endswith("weight") else 0

    def placements(self, name: str) -> list[str]:
        """That, and for a stack the dim of experts."""
        return [f"Shard({self.cut_of(name)})", *(["Shard(0)"] if is_expert(name) and self.stacked else [])]

    def full(self) -> dict[str, Tensor]:
        """The parameters, those of experts with all values."""
        return {name: parameter.detach() for name, parameter in self.build_in(None).named_parameters()}

    def layouts(self, rank: int, *facts: str, **other: Any) -> dict[str, Any]:
        """Experts are put together as a stack, or each alone."""
        found = super().layouts(rank, *facts, **other)
        for name, facts_of in found.items():
            full = facts_of["full"]
            facts_of["full"] = (
                full.flatten(0, 1) if self.stacked and is_expert(name) else self.whole_of(rank, name, full)
            )
        return found


def is_expert(name: str) -> bool:
    """Whether a parameter of this name is an expert's."""
    return ".expert." in name


#: How many ranks there are, and how many experts.
SIZES = ((4, 2), (4, 2), (2, 2), (4, 4))


@st.composite
def expert_cases(
    draw: st.DrawFn,
    /,
    stacked: bool = False,
    replicated: bool = False,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    across: bool = False,
    **fixed: Any,
) -> ExpertCase:
    """Blocks of integers: one, of these sizes, has activations below 2**12, gradients below 2**20 that are multiples of
    2**-2, and weights after a step that are multiples of 2**-5, so that 24 bits hold every sum (see ``tolerance.py``).

    Where weights are cut along dim 1, ranks must divide it.
    """
    answers = ["nothing", "placement", *["mesh", "mesh alone"] * (not replicated)]
    (world_size, ep), says = draw(st.sampled_from(sizes)), draw(st.sampled_from(answers))
    cut = 1 if stacked else draw(st.sampled_from([0, 0, 1]))
    whole = world_size // ep if cut else 1
    dim = draw(st.integers(1, 4).map(lambda dim: -(-dim // whole) * whole))
    net = Stack(dim, ("mlp",), multiplier=draw(st.integers(1, 2)), bias=draw(st.booleans()))
    case = draw(training_cases(exact=True, net=net, world_size=world_size, **fixed))
    return as_case(ExpertCase, case, ep=ep, cut=cut, stacked=stacked, says=says, replicated=replicated, across=across)


def expert_mesh(rank: Rank, case: ExpertCase) -> DeviceMesh:
    """The mesh of two axes: ranks that have the same expert, and experts; on replicas the other way round."""
    shape, names = (case.world_size // case.ep, case.ep), ("copies", "ep")
    return rank.mesh(shape[::-1], names[::-1]) if case.replicated else rank.mesh(shape, names)


class ShardedExperts(Resting):
    """The net of a case on one rank: dense parameters over all ranks, an expert's over those that have it."""

    #: Whether all of an expert's parameters are given one description of their mesh, or each one of its own.
    same_object = True

    places = ShardedStack.places

    def made(self) -> Any:
        """The net with the rank's own expert."""
        rank, case, subject = self.rank, self.case, self.rank.implementation
        make, result = subject.shard_mesh_info, subject.shard_placement_result
        net = case.build_value(case.value_of(rank.number))
        meshes = expert_mesh(rank, case)
        mesh = meshes if case.replicated else rank.mesh()
        apart = meshes["ep" if case.across else "copies"]
        dense, expert = make(rank.mesh()), make(apart)
        if case.stacked:
            stack(net, meshes["ep"])
        cuts = {p: case.cut_of(name) for name, p in net.named_parameters() if is_expert(name)}

        def place(parameter: nn.Parameter) -> Any:
            cut = Shard(cuts.get(parameter, 0))
            if parameter not in cuts and "mesh" not in case.says:
                return cut if case.says == "placement" else None
            own = dense if parameter not in cuts else expert if self.same_object else make(apart)
            return result(None if case.says == "mesh alone" and not cut.dim else cut, own)

        options = {"reshard_after_forward": case.reshard_after_forward, "shard_placement_fn": place}
        for module in [*(net[place] for place in case.sharded), net]:
            subject.fully_shard(module, mesh=mesh, **options)
        return net

    def see_layouts(self) -> dict[str, Any]:
        """How every parameter lies on its mesh, what this rank holds, and what the ranks of that mesh put together."""
        two, every = expert_mesh(self.rank, self.case), self.rank.mesh()
        experts = two if self.case.stacked else two["copies"]
        return {name: layout(p, experts if is_expert(name) else every) for name, p in self.held.items()}


class DescribedApart(ShardedExperts):
    """The same with several descriptions of one mesh."""

    same_object = False


def stack(net: nn.Module, mesh: DeviceMesh) -> None:
    """Make every stacked weight a DTensor of all experts, of which this rank has its own."""
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 3:
                whole = DTensor.from_local(parameter.detach(), mesh, [Shard(0)], run_check=False)
                setattr(module, name, nn.Parameter(whole))


def reduced_when_deferred(rank: Rank, case: ExpertCase) -> dict[str, int]:
    """What a pass communicates but for gathers, if no gradients are to be synchronised."""
    experts = ShardedExperts(rank, case)
    experts.do_all(("forward", "backward", "drop"))
    with rank.collectives() as entries:
        experts.do_all(("defer gradient_sync", "forward", "backward"))
    return counted([each for each in entries if each["op"] != "all_gather"])


def calls_of(rank: Rank, case: ExpertCase, setter: str) -> str:
    """Give the root an all-gather or a hook after reduction: whether it was refused, and how often a pass calls it."""
    experts, end = ShardedExperts(rank, case), "taken"
    counting: Any = OwnGather() if setter == "set_custom_all_gather" else Counting()
    try:
        getattr(experts.net, setter)(counting)
    except Exception:
        end = "refused"
    experts.do_all(("unshard",) if setter == "set_custom_all_gather" else ("forward", "backward"))
    return f"{end}, and called {counting.calls} times"
