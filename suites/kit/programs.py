"""What runs on ranks: plain functions of a rank and a case that return traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from harness.vendor import Feature, Introspection
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.kit.cases import LAYOUT, CaseOnMesh, NetCase, TrainingCase
from suites.oracle.facts import placement_words
from suites.oracle.layout import is_dtensor, own, put_together, seen
from suites.oracle.sharded import Sharded
from suites.oracle.situation import Step, Trace

#: What no net holds: its weights are small or drawn from the normal distribution.
CONSTANT = 1337.0


def apply(
    rank: Rank, case: NetCase, net: nn.Sequential, function: Callable[..., Any] | None = None, **options: Any
) -> nn.Sequential:
    """Shard the case's blocks, then the root, over the case's mesh; or do it by another function."""
    shard = function or rank.implementation.fully_shard
    options.setdefault("mesh", data_mesh(rank, case))
    for module in (*(net[place] for place in case.sharded), net):
        shard(module, **options)
    return net


def offload_policy(rank: Rank) -> Any:
    """Rest on the CPU, in pinned memory where there is such, as by default."""
    return rank.implementation.cpu_offload_policy(pin_memory="pinned memory" not in rank.backend.lacks)


def whole_mesh(rank: Rank, case: CaseOnMesh) -> DeviceMesh:
    """The case's mesh of all axes; all ranks in one, if it names none."""
    return rank.mesh(case.mesh, case.axes) if case.mesh else rank.mesh()


def data_mesh(rank: Rank, case: CaseOnMesh) -> DeviceMesh:
    """What of it is for data: all of it, unless other axes share layers."""
    mesh = whole_mesh(rank, case)
    return mesh if case.data_axes == case.axes or not case.mesh else mesh[case.data_axes]


class ShardedStack(Sharded):
    """The stack of a case, on one rank."""

    def made(self) -> Any:
        """The net."""
        return sharded(self.rank, self.case, **self.options)

    @classmethod
    def layouts(cls, rank: Rank, case: TrainingCase) -> dict[str, Any]:
        """A program: how parameters lie on the mesh of all axes at first."""
        return layouts(cls(rank, case).net, whole_mesh(rank, case))

    def places(self) -> list[str]:
        """Those of blocks, and the root's."""
        return [*map(str, self.case.sharded), ""]


def sharded(rank: Rank, case: TrainingCase, net: Any = None, **options: Any) -> Any:
    """The case's net, or another, sharded as the case says, with its policy if it has one."""
    if case.policy:
        options["mp_policy"] = policy_of(rank, case)
    return apply(rank, case, net or case.build(), reshard_after_forward=case.reshard_after_forward, **options)


def policy_of(rank: Rank, case: CaseOnMesh) -> Any:
    """The case's policy, made as the implementation makes them."""
    return rank.implementation.mixed_precision_policy(**case.policy)


def train(rank: Rank, case: TrainingCase) -> Trace:
    """Shard, then step with torch's own SGD; keep what each step produced."""
    net = sharded(rank, case)
    return steps(rank, case, net, optimizer=torch.optim.SGD(net.parameters(), lr=case.learning_rate))


def steps(
    rank: Rank,
    case: TrainingCase,
    net: nn.Module,
    forward: Callable[..., Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Trace:
    """Train a net that is sharded already, with the case's optimizer; ``forward`` if it is not run by calling it."""
    optimizer = optimizer or case.optimizer(net.parameters())
    trace: Trace = []
    for step in range(case.steps):
        loss = loss_of(rank, case, forward or net, step)
        loss.backward()
        optimizer.step()
        trace.append(Step(loss=loss.detach(), gradients=gradients(net), parameters=parameters(net)))
        optimizer.zero_grad(set_to_none=case.set_to_none)
    return trace


def after_a_step(
    rank: Rank, case: TrainingCase, net: nn.Module, note: Callable[[Any], str]
) -> dict[str, dict[str, str]]:
    """What is noted of parameters, gradients, momenta and entries of the state dict after a step with momentum."""
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate, momentum=0.5)
    loss_of(rank, case, net).backward()
    noted = {"gradients": {name: note(p.grad) for name, p in net.named_parameters()}}
    optimizer.step()
    return {
        **noted,
        "parameters": {name: note(p) for name, p in net.named_parameters()},
        "momenta": {name: note(optimizer.state[p]["momentum_buffer"]) for name, p in net.named_parameters()},
        "state dict": {name: note(entry) for name, entry in net.state_dict().items()},
    }


def loss_of(rank: Rank, case: TrainingCase, forward: Callable[..., Tensor], step: int = 0) -> Tensor:
    """The loss of this rank's batch of one step."""
    place = case.data_rank(rank.number)
    return case.loss(forward(case.inputs(step, place).to(rank.device)), step, place)


def tensors(net: nn.Module) -> dict[str, Tensor]:
    """This rank's own part of every parameter, and every buffer: the very memory."""
    return {name: own(tensor) for name, tensor in [*net.named_parameters(), *net.named_buffers()]}


@torch.no_grad()
def write(rank: Rank, case: TrainingCase, net: nn.Module) -> None:
    """Write the case's weights into this rank's part of every parameter, and its buffers."""
    asks_for(Feature.ROW_LAYOUT)
    mine = tensors(net)
    for name, parameter in case.full().items():
        mine[name].copy_(case.part(rank.number, name, parameter))
    for name, buffer in case.build().named_buffers():
        mine[name].copy_(buffer)


def parameters(net: nn.Module) -> dict[str, Tensor]:
    """What is compared of every parameter, by name."""
    return {name: seen(parameter) for name, parameter in net.named_parameters()}


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    """The same of its gradient; None where there is none."""
    return {name: None if p.grad is None else seen(p.grad, p) for name, p in net.named_parameters()}


def introspection(rank: Rank) -> Introspection:
    """The implementation's introspection."""
    return rank.implementation.introspection


#: What can be said of a parameter and the mesh that it should lie on; a device is "the mesh's", or of another type.
FACTS: dict[str, Callable[[Any, DeviceMesh], Any]] = {
    "type": lambda p, _: "DTensor" if is_dtensor(p) else type(p).__name__,
    "on the mesh": lambda p, mesh: is_dtensor(p) and p.device_mesh == mesh,
    "placements": lambda p, _: [placement_words(placement) for placement in getattr(p, "placements", ())],
    "local": lambda p, _: seen(p),
    "full": lambda p, _: put_together(p),
    "size": lambda p, _: list(p.size()),
    "stride": lambda p, _: list(p.stride()),
    "local size": lambda p, _: list(own(p).size()),
    "dtype": lambda p, _: str(own(p).dtype),
    "device": lambda p, mesh: "the mesh's" if own(p).device.type == mesh.device_type else own(p).device.type,
}


def layouts(net: nn.Module, mesh: DeviceMesh, *facts: str) -> dict[str, Any]:
    """Facts of every parameter: how it lies on a mesh, what this rank holds, and what all ranks put together."""
    return {name: layout(p, mesh, *facts) for name, p in net.named_parameters()}


def layout(tensor: Tensor, mesh: DeviceMesh, *facts: str) -> dict[str, Any]:
    """Those of one."""
    asks_for(Feature.DTENSORS)
    asks_for(Feature.ROW_LAYOUT)
    return {fact: FACTS[fact](tensor, mesh) for fact in facts or LAYOUT}


def laid_as(parameter: Any, part: Tensor) -> DTensor:
    """A DTensor of this rank's ``part`` that lies as a sharded parameter does."""
    size, stride = parameter.shape, parameter.stride()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=size, stride=stride)
