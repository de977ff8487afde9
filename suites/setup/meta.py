"""Nets built and sharded on the meta device: the cases, and what runs on ranks.

A weight of five rows on two ranks has no memory anywhere until ``to_empty``, and three and two rows of it afterwards::

    fully_shard    rank 0: DTensor of (5, 4), local (3, 4) on meta    rank 1: DTensor of (5, 4), local (2, 4) on meta
    to_empty       rank 0: local (3, 4) on the device                  rank 1: local (2, 4) on the device
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.hsdp import CONSTANT, RESHARDS, tensors, write
from suites.kit.programs import apply, data_mesh, spread, steps
from suites.kit.strategies import training_cases
from suites.oracle.layout import shard
from suites.oracle.situation import Trace

#: Below this a gradient may be too small for an optimizer to move a float32 weight by it.
TINY = 1e-4


@dataclass(frozen=True)
class MetaCase(TrainingCase):
    """A net that is sharded on meta.

    ``default_mesh`` leaves the mesh to ``fully_shard``; ``inside`` calls it within the meta context, where the net is
    built in any case. ``given`` are the blocks that get memory in a test of what is left on meta.
    """

    default_mesh: bool = False
    inside: bool = True
    given: tuple[int, ...] = ()


@st.composite
def meta_cases(draw: st.DrawFn, /, at_least: int = 1, exact: bool = False, given: bool = False) -> MetaCase:
    """A training case whose net begins on meta; with ``given``, some of its blocks but not all get memory."""
    case = draw(training_cases(at_least=at_least, exact=exact, reshard_after_forward=draw(RESHARDS)))
    count = len(case.net.blocks)
    return MetaCase(
        **{name: getattr(case, name) for name in TrainingCase.__dataclass_fields__},
        default_mesh=draw(st.booleans()),
        inside=draw(st.booleans()),
        given=tuple(sorted(draw(st.sets(st.integers(0, count - 1), max_size=count - 1)))) if given else (),
    )


def on_meta(rank: Rank, case: MetaCase) -> nn.Sequential:
    """Build the net on meta and shard it there."""
    options: dict[str, Any] = {"reshard_after_forward": case.reshard_after_forward}
    its_own = case.default_mesh and default_device_type() == rank.device.type
    options["mesh"] = None if its_own else data_mesh(rank, case)
    with torch.device("meta"):
        net = case.net.build().to(case.torch_dtype)
        if case.inside:
            return apply(rank, case, net, **options)
    return apply(rank, case, net, **options)


def default_device_type() -> str:
    """Where ``fully_shard`` makes its own mesh: on the accelerator, or on the CPU when there is none."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator.type if accelerator else "cpu"


def materialized(rank: Rank, case: MetaCase) -> nn.Sequential:
    """The same with memory on the device, not yet written."""
    net = on_meta(rank, case)
    net.to_empty(device=rank.device)
    return net


def layouts_on_meta(rank: Rank, case: MetaCase) -> dict[str, Any]:
    """What every parameter is after sharding on meta."""
    return all_facts(rank, on_meta(rank, case), data_mesh(rank, case))


def layouts_on_device(rank: Rank, case: MetaCase) -> dict[str, Any]:
    """What every parameter is after ``to_empty``."""
    return all_facts(rank, materialized(rank, case), data_mesh(rank, case))


def all_facts(rank: Rank, net: nn.Module, mesh: DeviceMesh) -> dict[str, Any]:
    """Facts of every parameter, by name."""
    return {name: facts(rank, p, mesh) for name, p in net.named_parameters()}


def facts(rank: Rank, tensor: Any, mesh: DeviceMesh) -> dict[str, Any]:
    """How a parameter lies on a mesh, and on which device its local part is."""
    own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    where = {"meta": "meta", rank.device.type: "the device"}
    return {
        **spread(tensor, mesh),
        "size": list(tensor.size()),
        "local size": list(own.size()),
        "lies on": where.get(own.device.type, str(own.device)),
    }


def left_unwritten(rank: Rank, case: MetaCase) -> dict[str, bool]:
    """Of every shard and buffer, whether ``reset_parameters`` of all modules left any of it as it was."""
    net = materialized(rank, case)
    reset_all(net)
    return unwritten(net)


def reset_all(net: nn.Module) -> None:
    """Write a constant over everything, then call ``reset_parameters`` of each module that has it."""
    for tensor in tensors(net).values():
        tensor.fill_(CONSTANT)
    for module in net.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()


def unwritten(net: nn.Module) -> dict[str, bool]:
    """Of every shard and buffer, whether any element is still the constant."""
    return {name: bool((tensor == CONSTANT).any()) for name, tensor in tensors(net).items()}


def step_after_reset(rank: Rank, case: MetaCase) -> dict[str, Any]:
    """One step of Adam from what ``reset_parameters`` wrote."""
    net = materialized(rank, case)
    reset_all(net)
    return adam_step(rank, case, net)


def adam_step(rank: Rank, case: TrainingCase, net: nn.Module) -> dict[str, Any]:
    """Whether the loss is finite, and which parameters got no gradient or did not follow it."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    before = {name: t.detach().clone() for name, t in tensors(net).items()}
    loss = case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number)
    loss.backward()
    gradients = {name: local_gradient(p) for name, p in net.named_parameters()}
    optimizer.step()
    after = tensors(net)
    stuck = [name for name, g in gradients.items() if bool(((g.abs() > TINY) & (after[name] == before[name])).any())]
    return {"finite": bool(loss.isfinite()), "without gradient": missing(net), "stuck": stuck}


def local_gradient(parameter: Any) -> Tensor:
    """This rank's own part of the gradient; zeros if there is none."""
    if parameter.grad is None:
        return torch.zeros_like(parameter.to_local() if hasattr(parameter, "to_local") else parameter)
    gradient: Tensor = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
    return gradient


def missing(net: nn.Module) -> list[str]:
    """The parameters without a gradient."""
    return [name for name, p in net.named_parameters() if p.grad is None]


def train_materialized(rank: Rank, case: MetaCase) -> Trace:
    """Write the case's weights into the shards of a net that began on meta, then train."""
    net = materialized(rank, case)
    write(net, case, lambda name, full: shard(full, case.shards, rank.number))
    return steps(rank, case, net)


def forward_too_early(rank: Rank, case: MetaCase) -> None:
    """Run forward while parameters of blocks that were not ``given`` memory are on meta."""
    net = on_meta(rank, case)
    for place in case.given:
        net[place].to_empty(device=rank.device)
    net(case.inputs(0, rank.number).to(rank.device))


def names_left_on_meta(case: MetaCase) -> list[str]:
    """The parameters on meta of the first group, root first, that has any there."""
    names = [name for name, _ in case.net.build().named_parameters()]
    left = [name for name in names if block(name) not in case.given]
    of_root = [name for name in left if block(name) not in case.sharded]
    first = block(left[0])
    return of_root or [name for name in left if block(name) == first]


def block(name: str) -> int:
    """The block that a parameter is in: 1 for ``"1.in_proj.weight"``."""
    return int(name.partition(".")[0])


def names_in(message: str, case: MetaCase) -> list[str]:
    """The parameters that a message names, in the net's order."""
    words = re.findall(r"[\w.]*\w", message)
    return [name for name, _ in case.net.build().named_parameters() if name in words]
