"""Nets with experts on ranks: every parameter is sharded over the mesh that its placement names."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from harness.worlds.rank import Rank
from suites.kit.programs import parameters, spread, steps
from suites.oracle.layout import local
from suites.oracle.sharded import Resting
from suites.parameters.experts import ExpertCase, is_expert
from suites.parameters.registration import CountingGather


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
