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
from suites.kit.programs import parameters, spread, steps
from suites.kit.strategies import training_cases
from suites.oracle.layout import local
from suites.oracle.sharded import Resting
from suites.parameters.apart import ApartCase
from suites.parameters.registration import CountingGather


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
    parameters: nothing, a placement, or a placement with a mesh. ``stacked`` makes an expert's weight one of a stack.
    """

    ep: int = 2
    cut: int = 0
    says: str = "nothing"
    stacked: bool = False
    accumulates: bool = False

    @property
    def values(self) -> int:
        """As many as experts."""
        return self.ep

    @property
    def actions(self) -> tuple[str, ...]:
        """Steps; or two backwards, of which the second reduces."""
        passes = ("forward", "backward")
        apart = ("defer gradient_sync", *passes, "resume gradient_sync", *passes)
        return apart if self.accumulates else super().actions

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
    case, says = draw(training_cases(exact=True, **fixed)), draw(st.sampled_from(["nothing", "placement", "mesh"]))
    found: ExpertCase = as_case(ExpertCase, case, **extra, says=says)
    return found


def expert_mesh(rank: Rank, case: ExpertCase) -> DeviceMesh:
    """The mesh of two axes: ranks that have the same expert, and experts."""
    return rank.mesh((case.world_size // case.ep, case.ep), ("copies", "ep"))


def sharded(rank: Rank, case: ExpertCase, same_object: bool = True, **options: Any) -> nn.Sequential:
    """Shard the case's blocks, then the root: dense parameters over all ranks, an expert's over those that have it.

    Unless ``same_object``, each of an expert's parameters is given a description of its own of one and the same mesh.
    """
    net, subject = case.build_value(rank.number % case.ep), rank.implementation
    assert subject.fully_shard is not None
    assert subject.shard_mesh_info is not None
    make, mesh = subject.shard_mesh_info, expert_mesh(rank, case)["copies"]
    dense, expert = make(rank.mesh()), make(mesh)
    if case.stacked:
        stack(net, expert_mesh(rank, case)["ep"])
    cuts = {p: case.cut_of(name) for name, p in net.named_parameters() if is_expert(name)}

    def place(parameter: nn.Parameter) -> Any:
        assert subject.shard_placement_result is not None
        if parameter in cuts:
            return subject.shard_placement_result(Shard(cuts[parameter]), expert if same_object else make(mesh))
        placed = subject.shard_placement_result(Shard(0), dense) if case.says == "mesh" else Shard(0)
        return None if case.says == "nothing" else placed

    options = {"reshard_after_forward": case.reshard_after_forward, "shard_placement_fn": place, **options}
    for module in [*(net[place] for place in case.sharded), net]:
        subject.fully_shard(module, mesh=rank.mesh(), **options)
    return net


def stack(net: nn.Module, mesh: DeviceMesh) -> None:
    """Make every stacked weight a DTensor of all experts, of which this rank has its own."""
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 3:
                whole = DTensor.from_local(parameter.detach(), mesh, [Shard(0)], run_check=False)
                setattr(module, name, nn.Parameter(whole))


def layouts(rank: Rank, case: ExpertCase) -> dict[str, Any]:
    """How every parameter lies on its mesh, what this rank holds, and what the ranks of that mesh put together."""
    two = expert_mesh(rank, case)
    found = {}
    for name, p in sharded(rank, case).named_parameters():
        mesh = two if is_expert(name) and case.stacked else two["copies"] if is_expert(name) else rank.mesh()
        assert isinstance(p, DTensor)
        found[name] = {**spread(p, mesh), "local": local(p), "full": p.full_tensor().detach()}
    return found


class ShardedExperts(Resting):
    """The net of a case, on one rank."""

    def made(self) -> Any:
        """That with the rank's own expert."""
        return sharded(self.rank, self.case)


def train_with_two_descriptions(rank: Rank, case: ExpertCase) -> dict[str, Any]:
    """Shard with several descriptions of one mesh, then train; or how that was refused."""
    try:
        net = sharded(rank, case, same_object=False)
    except ValueError as error:
        return {"refused": str(error)}
    return {"trace": steps(rank, case, net)}


def by_hand(rank: Rank, case: ExpertCase) -> dict[str, Any]:
    """The root's parameters after ``unshard``, and after ``reshard``: the numbers here."""
    net = sharded(rank, case)
    net.unshard()  # type: ignore[operator]
    full = parameters(net)
    net.reshard()  # type: ignore[operator]
    return {"unsharded": full, "resharded": parameters(net)}


def own_gather(rank: Rank, case: ExpertCase) -> str:
    """Give the root an all-gather of its own: whether it was refused, and how often one unshard calls it."""
    net, counting = sharded(rank, case), CountingGather()
    try:
        net.set_custom_all_gather(counting)  # type: ignore[operator]
    except ValueError:
        return "refused"
    net.unshard()  # type: ignore[operator]
    return f"called {counting.calls} times"


def own_hook(rank: Rank, case: ExpertCase) -> str:
    """Give the root a hook of its own after reduction: whether it was refused, and how often one backward calls it."""
    net, calls = sharded(rank, case), []
    try:
        net.set_all_reduce_hook(lambda gradient: calls.append(gradient.shape))  # type: ignore[operator]
    except ValueError:
        return "refused"
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
    return f"called {len(calls)} times"
