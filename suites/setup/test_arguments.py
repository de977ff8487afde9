"""Arguments: the meshes that ``fully_shard`` takes and refuses, and where it puts what it is given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.kit.cases import NetCase, TrainingCase
from suites.kit.parallel import ParallelCase, parallel_cases, shard_in_two_ways
from suites.kit.programs import apply, gradients, parameters, shard_tree
from suites.kit.stepping import OwnSGD
from suites.kit.strategies import stacks, training_cases, trees, world_sizes
from suites.kit.trees import TreeCase
from suites.oracle.layout import own

# Where things lie. Cases are built on the CPU, so a target that is the CPU cannot tell.


def devices(rank: Rank, net: nn.Module) -> dict[str, Any]:
    """The device of the rank, and that of every parameter and buffer and of their local parts."""
    named = [*net.named_parameters(), *net.named_buffers()]
    parts = {name: own(tensor) for name, tensor in named}
    return {
        "rank": str(torch.empty(0, device=rank.device).device),
        "tensors": {name: str(tensor.device) for name, tensor in named},
        "parts": {name: str(part.device) for name, part in parts.items()},
    }


def devices_of_plain(rank: Rank, case: TreeCase) -> dict[str, Any]:
    """Where a net ends that was on the CPU."""
    return devices(rank, shard_tree(rank, case))


def devices_of_parallel(rank: Rank, case: ParallelCase) -> dict[str, Any]:
    """Where a net ends of which tensor parallelism had put some on the device already."""
    return devices(rank, shard_in_two_ways(rank, case))


def lie_on_the_device(trial: Trial, facts: list[dict[str, Any]]) -> None:
    """Require that all tensors and local parts are on the device of their rank."""
    for number, got in enumerate(facts):
        want = {kind: dict.fromkeys(got[kind], got["rank"]) for kind in ("tensors", "parts")}
        trial.agree(f"rank {number}", got, {"rank": got["rank"], **want})


@requirement("arguments/moves-to-device", Feature.FULLY_SHARD, limits=("second device type",), source="C1")
@given(case=trees())
def test_parameters_and_buffers_end_on_the_device_of_the_mesh(trial: Trial, case: TreeCase) -> None:
    """fully_shard moves all parameters and buffers of a net from the CPU to the device of the mesh."""
    lie_on_the_device(trial, trial.run(devices_of_plain, case))


@requirement(
    "arguments/moves-the-rest-to-device",
    Feature.FULLY_SHARD,
    Feature.TENSOR_PARALLEL,
    ranks=4,
    limits=("second device type",),
    source="C2",
)
@given(case=parallel_cases(buffers=st.just(True)))
def test_what_tensor_parallelism_left_on_the_cpu_is_moved(trial: Trial, case: ParallelCase) -> None:
    """After tensor parallelism, fully_shard moves what is still on the CPU, so that all ends on the mesh's device."""
    lie_on_the_device(trial, trial.run(devices_of_parallel, case))


# Meshes that are refused.


def shard_across_device_types(rank: Rank, case: ParallelCase) -> None:
    """Tensor parallelism over a mesh of CPUs, then ``fully_shard`` over a mesh of the target's devices."""
    shape, axes = (case.dp, case.tp), ("dp", "tp")
    mesh, of_cpus = case.mesh(rank), init_device_mesh("cpu", shape, mesh_dim_names=axes)
    net = case.build()
    for layer in (net.in_proj, net.out_proj):
        part = DTensor.from_local(layer.weight.detach(), of_cpus["tp"], run_check=False)
        layer.weight = nn.Parameter(part)
    assert rank.implementation.fully_shard is not None
    rank.implementation.fully_shard(net, mesh=mesh["dp"])


@requirement(
    "arguments/one-device-type",
    Feature.FULLY_SHARD,
    Feature.TENSOR_PARALLEL,
    ranks=4,
    limits=("second device type",),
    source="C3",
)
@given(case=parallel_cases())
def test_a_parameter_on_a_mesh_of_another_device_type_is_refused(trial: Trial, case: ParallelCase) -> None:
    """A DTensor parameter whose mesh is of another device type than the given mesh raises ValueError."""
    match = "mesh of the same type.*cpu"
    trial.refuses(shard_across_device_types, case, error="ValueError", match=match)


@dataclass(frozen=True)
class MeshCase(NetCase):
    """A net, and the shape of the mesh that it is to be sharded over."""

    shape: tuple[int, ...] = ()


@st.composite
def meshes_of_three_axes(draw: st.DrawFn) -> MeshCase:
    """All ranks in three axes, of which some may have one rank."""
    world_size = draw(world_sizes())
    first = draw(st.sampled_from([n for n in range(1, world_size + 1) if world_size % n == 0]))
    second = draw(st.sampled_from([n for n in range(1, world_size + 1) if world_size // first % n == 0]))
    shape = (first, second, world_size // first // second)
    assert math.prod(shape) == world_size
    return MeshCase(world_size=world_size, net=draw(stacks(most_blocks=1)), shape=shape)


def shard_over_its_mesh(rank: Rank, case: MeshCase) -> None:
    """Shard the net over a mesh of the case's shape."""
    apply(rank, case, case.build(), mesh=rank.mesh(case.shape, ("a", "b", "c")))


@requirement("arguments/mesh-of-three-axes", Feature.FULLY_SHARD, source="C4")
@given(case=meshes_of_three_axes())
def test_a_mesh_of_three_axes_is_refused(trial: Trial, case: MeshCase) -> None:
    """A mesh of three axes raises ValueError that asks for one or two, even where two of them have one rank each."""
    trial.refuses(shard_over_its_mesh, case, error="ValueError", match="1D or 2D DeviceMesh")


# Meshes made from groups.


@dataclass(frozen=True)
class GroupCase(TrainingCase):
    """Training over the first axes of a mesh whose last axis has ``copies`` ranks, which train on the same data.

    Eight ranks with two copies train on 4 shards, or with ``replicas`` 2 on 2 replicas of 2 shards; ranks 0, 2, 4
    and 6 are one group of four, or two groups each way, and so are the odd ones.
    """

    copies: int = 1
    replicas: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The mesh that trains: replicas, unless 0, and shards."""
        ranks = self.world_size // self.copies
        return (self.replicas, ranks // self.replicas) if self.replicas else (ranks,)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its axes."""
        return ("replicate", "shard") if self.replicas else ("shard",)


@st.composite
def group_cases(draw: st.DrawFn, two_axes: bool = False) -> GroupCase:
    """Exact training, so that no order of additions can show."""
    base = draw(training_cases(exact=True, at_least=4 if two_axes else 2, reshard_after_forward=None))
    copies = draw(st.sampled_from([n for n in (1, 2, 4) if base.world_size % n == 0]))
    if not two_axes:
        return GroupCase(**vars(base), copies=copies)
    ranks = base.world_size // copies
    return GroupCase(
        **vars(base), copies=copies, replicas=draw(st.sampled_from([n for n in (2, 1, 4) if ranks % n == 0]))
    )


def reference_mesh(rank: Rank, case: GroupCase) -> DeviceMesh:
    """A slice of a mesh of all ranks."""
    whole = rank.mesh((*case.shape, case.copies), (*case.axes, "copy"))
    return whole[case.axes]


def mesh_of_groups(rank: Rank, case: GroupCase) -> DeviceMesh:
    """A mesh that knows nothing of the reference mesh but its groups."""
    groups = [reference_mesh(rank, case).get_group(axis) for axis in case.axes]
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], rank.device.type, mesh_dim_names=case.axes)
    ranks = reference_mesh(rank, case).mesh
    return DeviceMesh.from_group(groups, rank.device.type, mesh=ranks, mesh_dim_names=case.axes)


def steps(rank: Rank, case: GroupCase, mesh: DeviceMesh) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Train over ``mesh`` with SGD; the net with its last gradients, and what each step produced."""
    net = apply(rank, case, case.build(), mesh=mesh)
    optimizer = OwnSGD(net.parameters(), case.learning_rate)
    trace, data = [], rank.number // case.copies
    for step in range(case.steps):
        optimizer.zero_grad()
        outputs = net(case.inputs(step, data).to(rank.device))
        loss = case.loss(outputs, step, data)
        loss.backward()
        optimizer.step()
        facts = {"outputs": outputs.detach(), "loss": loss.detach()}
        trace.append({**facts, "gradients": gradients(net), "parameters": parameters(net)})
    return net, trace


def both_traces(rank: Rank, case: GroupCase) -> dict[str, list[dict[str, Any]]]:
    """What training produces over the reference mesh, and over one made from its groups."""
    return {
        "reference": steps(rank, case, reference_mesh(rank, case))[1],
        "made": steps(rank, case, mesh_of_groups(rank, case))[1],
    }


def meshes_after_training(rank: Rank, case: GroupCase) -> dict[str, Any]:
    """The meshes of parameters and gradients after training over a mesh made from groups."""
    net, _ = steps(rank, case, mesh_of_groups(rank, case))
    return {name: [mesh_facts(p), mesh_facts(p.grad)] for name, p in net.named_parameters()}


def mesh_facts(tensor: Tensor | None) -> dict[str, Any]:
    """Which ranks a tensor's mesh has, and where this rank is among them."""
    if not isinstance(tensor, DTensor):
        return {"ranks": type(tensor).__name__, "coordinate": None}
    return {"ranks": tensor.device_mesh.mesh.tolist(), "coordinate": list(tensor.device_mesh.get_coordinate() or ())}


def expected_mesh(case: GroupCase, number: int) -> dict[str, Any]:
    """The ranks that train together with rank ``number``, and its place among them."""
    ranks = torch.arange(case.world_size).reshape(*case.shape, case.copies)[..., number % case.copies]
    return {"ranks": ranks.tolist(), "coordinate": (ranks == number).nonzero()[0].tolist()}


@requirement("arguments/mesh-from-group", Feature.FULLY_SHARD, Feature.MESH_FROM_GROUP, ranks=2, source="C16")
@given(case=group_cases())
def test_parameters_and_gradients_lie_on_the_ranks_of_the_group(trial: Trial, case: GroupCase) -> None:
    """Over a mesh made from a process group, parameters and gradients lie on its ranks, in its order."""
    for number, got in enumerate(trial.run(meshes_after_training, case)):
        names = [name for name, _ in case.build().named_parameters()]
        trial.agree(f"rank {number}", got, {name: [expected_mesh(case, number)] * 2 for name in names})


@requirement("arguments/trains-on-mesh-from-group", Feature.FULLY_SHARD, Feature.MESH_FROM_GROUP, ranks=2, source="C16")
@given(case=group_cases())
def test_a_mesh_made_from_a_group_trains_as_the_mesh_it_came_from(trial: Trial, case: GroupCase) -> None:
    """Outputs, losses, gradients and local shards over a mesh made from a group equal those over the original mesh."""
    for number, traces in enumerate(trial.run(both_traces, case)):
        trial.agree(f"rank {number}", traces["made"], traces["reference"])


@requirement(
    "arguments/trains-on-mesh-from-groups",
    Feature.FULLY_SHARD,
    Feature.HSDP,
    Feature.MESH_FROM_GROUP,
    ranks=4,
)
@given(case=group_cases(two_axes=True))
def test_a_mesh_made_from_two_groups_trains_as_the_mesh_they_came_from(trial: Trial, case: GroupCase) -> None:
    """Over a mesh made from a group for each axis, HSDP gives the same outputs, losses, gradients and local shards."""
    for number, traces in enumerate(trial.run(both_traces, case)):
        trial.agree(f"rank {number}", traces["made"], traces["reference"])
