"""Arguments: the meshes that ``fully_shard`` takes and refuses, and where it puts what it is given."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from harness.worlds.rank import Rank
from suites.generated.net_cases import GeneratedCase
from suites.generated.net_programs import spread_net
from suites.generated.net_strategies import generated_cases
from suites.kit.cases import CaseOnMesh, Stack, TrainingCase, as_case
from suites.kit.nets import Block, Net
from suites.kit.parallel import ParallelCase, cut_over_tp, parallel_cases
from suites.kit.programs import FACTS, apply, data_mesh, tensors
from suites.kit.strategies import given, stacks, training_cases, world_sizes
from suites.oracle.expected import expected
from suites.oracle.judging import finds, follows, sees
from suites.oracle.sharded import Resting
from suites.oracle.situation import SUMS
from suites.setup.entry_nets import PlainCase
from suites.setup.named import Divided, Named
from suites.training.structures import Output

TWO_AXES = (Feature.FULLY_SHARD, Feature.TENSOR_PARALLEL)
FROM_GROUP = (Feature.FULLY_SHARD, Feature.MESH_FROM_GROUP)
DEVICES = ("second device type",)
#: A net that is sharded as a whole.
ROOT = TrainingCase(2, Stack(2, ("linear",)), sharded=(), exact=True)


# Where things lie. Cases are built on the CPU, so a target that is the CPU cannot tell.


def devices(rank: Rank, case: CaseOnMesh) -> dict[str, str]:
    """Where parameters and buffers end of a net that was on the CPU, but for what tensor parallelism moved."""
    if isinstance(case, ParallelCase):
        net: nn.Module = apply(rank, case, cut_over_tp(rank, case, case.build()))
    else:
        assert isinstance(case, GeneratedCase)
        net = spread_net(rank, case, case.build())
    return {name: FACTS["device"](tensor, data_mesh(rank, case)) for name, tensor in tensors(net).items()}


def lie_on_the_device(trial: Trial, case: CaseOnMesh) -> None:
    """Require that all tensors are on the device of the mesh."""
    net = case.build()
    names = [name for name, _ in [*net.named_parameters(), *net.named_buffers()]]
    finds(trial, devices, case, dict.fromkeys(names, "the mesh's"))


@requirement("arguments/moves-to-device", Feature.FULLY_SHARD, limits=DEVICES, source="C1")
@example(case=GeneratedCase(1, Net(2, (Block("norms"),))))
@given(case=generated_cases(world_size=world_sizes()))
def test_parameters_and_buffers_end_on_the_device_of_the_mesh(trial: Trial, case: GeneratedCase) -> None:
    """fully_shard moves all parameters and buffers of a net from the CPU to the device of the mesh."""
    lie_on_the_device(trial, case)


@requirement("arguments/moves-the-rest-to-device", *TWO_AXES, ranks=4, limits=DEVICES, source="C2")
@given(case=parallel_cases(even=False, blocks=("buffer",)))
def test_what_tensor_parallelism_left_on_the_cpu_is_moved(trial: Trial, case: ParallelCase) -> None:
    """After tensor parallelism, fully_shard moves what is still on the CPU, so that all ends on the mesh's device."""
    lie_on_the_device(trial, case)


class Looking(nn.Module):
    """A module that looks where its inputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor, **more: Any) -> Any:
        """The same; ``found`` has the device types of all tensors in the inputs."""
        self.found, self.more = tree_map_only(Tensor, lambda tensor: tensor.device.type, (x, more)), more
        return x


def inputs_of_the_root(rank: Rank, case: PlainCase) -> Any:
    """Where the root finds inputs that were on the CPU."""
    net = rank.implementation.fully_shard(Looking(), mesh=rank.mesh())
    one = torch.ones(1, 2)
    net(one, nested={"list": [one, 1]}, pair=(one, one))
    return tree_map_only(str, lambda kind: "the mesh's" if kind == rank.device.type else kind, net.found)


@requirement("arguments/inputs-to-device", Feature.FULLY_SHARD, level="should", limits=DEVICES)
def test_inputs_of_the_root_are_moved(trial: Trial) -> None:
    """Inputs of the root that are on the CPU, in lists, tuples and dicts too, are moved to the device of the mesh."""
    there = "the mesh's"
    finds(trial, inputs_of_the_root, PlainCase(1), (there, {"nested": {"list": [there, 1]}, "pair": (there, there)}))


#: Dicts of other classes, of one tensor.
DICTS: dict[str, Callable[[Tensor], Any]] = {
    "OrderedDict": lambda one: OrderedDict(left=one),
    "defaultdict": lambda one: defaultdict(lambda: one, left=one),
    "Output": Output,
}


def input_in_a_dict(rank: Rank, case: PlainCase) -> list[Any]:
    """The class of the dict that the root gets, and whether what is in it is on the device."""
    net, one = rank.implementation.fully_shard(Looking(), mesh=rank.mesh()), torch.ones(1, 2)
    net(one, sent=DICTS[case.way](one))
    came = net.more["sent"]
    return [type(came).__name__, isinstance(came["left"], Tensor) and came["left"].device.type == rank.device.type]


@requirement("arguments/ordered-dicts-to-device", Feature.FULLY_SHARD, level="should", limits=DEVICES)
def test_ordered_dicts_are_moved_as_they_are(trial: Trial) -> None:
    """Inputs of the root in an ordered dict arrive on the device, and in such a dict."""
    finds(trial, input_in_a_dict, PlainCase(1, "OrderedDict"), ["OrderedDict", True])


@requirement("arguments/dicts-to-device", Feature.FULLY_SHARD, level="should", limits=DEVICES)
@pytest.mark.parametrize("kind", ["defaultdict", "Output"])
def test_dicts_of_other_classes_are_moved_as_they_are(trial: Trial, kind: str) -> None:
    """Inputs of the root in a dict with a default, or in one that is a dataclass, arrive on the device."""
    finds(trial, input_in_a_dict, PlainCase(1, kind), [kind, True])


# Meshes that are refused.


def shard_across_device_types(rank: Rank, case: ParallelCase) -> None:
    """Tensor parallelism over a mesh of CPUs, then ``fully_shard`` over a mesh of the target's devices."""
    of_cpus = init_device_mesh("cpu", case.mesh, mesh_dim_names=case.axes)
    net: Any = case.build()
    for layer in (net[0].in_proj, net[0].out_proj):
        part = DTensor.from_local(layer.weight.detach(), of_cpus["tp"], run_check=False)
        layer.weight = nn.Parameter(part)
    rank.implementation.fully_shard(net, mesh=data_mesh(rank, case))


@requirement("arguments/one-device-type", *TWO_AXES, ranks=4, limits=DEVICES, source="C3")
@given(case=parallel_cases(even=False))
def test_a_parameter_on_a_mesh_of_another_device_type_is_refused(trial: Trial, case: ParallelCase) -> None:
    """A DTensor parameter whose mesh is of another device type than the given mesh raises an error that names one."""
    trial.refuses(shard_across_device_types, case, "mesh", "device type", "device_type")


@st.composite
def meshes_of_three_axes(draw: st.DrawFn) -> ParallelCase:
    """All ranks in three axes, of which some may have one rank."""
    world_size = draw(world_sizes())
    first = draw(st.sampled_from([n for n in range(1, world_size + 1) if world_size % n == 0]))
    second = draw(st.sampled_from([n for n in range(1, world_size + 1) if world_size // first % n == 0]))
    mesh = (first, second, world_size // first // second)
    assert math.prod(mesh) == world_size
    axes = ("a", "b", "c")
    return ParallelCase(world_size, draw(stacks(most_blocks=1)), mesh=mesh, axes=axes, shard=axes)


def shard_over_its_mesh(rank: Rank, case: ParallelCase) -> None:
    """Shard the net over the case's mesh."""
    apply(rank, case, case.build())


@requirement("arguments/mesh-of-three-axes", Feature.FULLY_SHARD, level="should", source="C4")
@given(case=meshes_of_three_axes())
def test_a_mesh_of_three_axes_is_refused(trial: Trial, case: ParallelCase) -> None:
    """A mesh of three axes raises an error that names it, even where two of them have one rank each."""
    trial.refuses(shard_over_its_mesh, case, "mesh", "DeviceMesh", "device_mesh", "1D", "2D", "3D")


# Meshes made from groups.


@st.composite
def group_cases(draw: st.DrawFn, two_axes: bool = False) -> ParallelCase:
    """Exact training over all axes of a mesh but the last, along which copies train on the same data.

    Eight ranks with two copies train on 4 shards, or with 2 replicas on 2 replicas of 2 shards; ranks 0, 2, 4 and 6 are
    one group of four, or two groups each way, and so are the odd ones.
    """
    base = draw(training_cases(exact=True, at_least=4 if two_axes else 2, reshard_after_forward=None))
    copies = draw(st.sampled_from([n for n in (1, 2, 4) if base.world_size % n == 0]))
    ranks = base.world_size // copies
    sizes = {"shard": ranks, "copy": copies}
    if two_axes:
        replicas = draw(st.sampled_from([n for n in (2, 1, 4) if ranks % n == 0]))
        sizes = {"replicate": replicas, "shard": ranks // replicas, "copy": copies}
    case = replace(base, mesh=tuple(sizes.values()))
    return as_case(ParallelCase, case, axes=tuple(sizes), shard=("shard",), replicate=("replicate",) * two_axes)


#: Two ranks that train with each other, and two others, on the same data.
TWICE = ParallelCase(
    4, Stack(3, ("linear",), multiplier=1), exact=True, steps=1, mesh=(2, 2), axes=("shard", "copy"), shard=("shard",)
)

#: Two replicas of two shards.
HYBRID = replace(TWICE, mesh=(2, 2, 1), axes=("replicate", "shard", "copy"), replicate=("replicate",))


class OverGroups(Resting):
    """A net over a mesh that knows nothing of the case's own but its groups."""

    def made(self) -> Any:
        """The net, sharded over it."""
        mesh, names, device = data_mesh(self.rank, self.case), self.case.data_axes, self.rank.device.type
        groups = [mesh.get_group(axis) for axis in names]
        made = (
            DeviceMesh.from_group(groups[0], device, mesh_dim_names=names)
            if len(groups) == 1
            else DeviceMesh.from_group(groups, device, mesh=mesh.mesh, mesh_dim_names=names)
        )
        return apply(self.rank, self.case, self.case.build(), mesh=made)

    def see_meshes(self) -> dict[str, Any]:
        """Which ranks the meshes of parameters and gradients have, and where this rank is among them."""
        return {name: [mesh_of(each) for each in (p, p.grad)] for name, p in self.held.items()}


def mesh_of(tensor: Any) -> dict[str, Any] | None:
    """Those of one, if it has any."""
    mesh = getattr(tensor, "device_mesh", None)
    return None if mesh is None else {"ranks": mesh.mesh.tolist(), "coordinate": list(mesh.get_coordinate() or ())}


def expected_meshes(case: ParallelCase, number: int) -> dict[str, Any]:
    """Of each parameter and gradient, the ranks that train together with rank ``number``, and its place among them."""
    ranks = torch.arange(case.world_size).reshape(case.mesh)[..., number % case.count("copy")]
    mesh = {"ranks": ranks.tolist(), "coordinate": (ranks == number).nonzero()[0].tolist()}
    return {name: [mesh, mesh] for name in case.full()}


@requirement("arguments/mesh-from-group", *FROM_GROUP, ranks=2, source="C16")
@example(case=TWICE)
@given(case=group_cases())
def test_parameters_and_gradients_lie_on_the_ranks_of_the_group(trial: Trial, case: ParallelCase) -> None:
    """Over a mesh made from a process group, parameters and gradients lie on its ranks, in its order."""
    sees(trial, OverGroups, case, ("forward", "backward"), meshes=partial(expected_meshes, case))


@requirement("arguments/trains-on-mesh-from-group", *FROM_GROUP, ranks=2, source="C16")
@example(case=TWICE)
@given(case=group_cases())
def test_training_over_a_mesh_made_from_a_group_is_exact(trial: Trial, case: ParallelCase) -> None:
    """Losses, gradients and local shards over a mesh made from a group are the unsharded model's, bit for bit."""
    follows(trial, OverGroups.play, expected(case))


@requirement(
    "arguments/trains-on-mesh-from-groups", Feature.FULLY_SHARD, Feature.HSDP, Feature.MESH_FROM_GROUP, ranks=4
)
@example(case=HYBRID)
@given(case=group_cases(two_axes=True))
def test_training_over_a_mesh_made_from_two_groups_is_exact(trial: Trial, case: ParallelCase) -> None:
    """Over a mesh made from a group for each axis, HSDP gives the unsharded model's losses, gradients and parts."""
    follows(trial, OverGroups.play, expected(case))


@requirement("arguments/names", Feature.FULLY_SHARD, ranks=2)
def test_methods_take_their_arguments_by_name(trial: Trial) -> None:
    """Methods of a sharded module take arguments by torch's names for them; what is so anyway changes no training."""
    follows(trial, Named.play, expected(ROOT))


@requirement("arguments/others-stay", Feature.FULLY_SHARD, Feature.DIVIDE_FACTOR, Feature.FORCE_SUM, ranks=2)
def test_what_is_set_stays_as_it_is_when_all_else_is_set(trial: Trial) -> None:
    """A divide factor stays as it was set when any other method is called, with what is so anyway."""
    acts = (SUMS, "set gradient_divide_factor 4.0", *ROOT.actions)
    follows(trial, Divided.play, expected(replace(ROOT, acts=acts)))
