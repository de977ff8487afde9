"""Nets that begin on the meta device: how they are built, given memory and filled, and what can be seen of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from harness.worlds.rank import Rank
from suites.kit.cases import SPREAD
from suites.kit.parallel import ParallelCase, cut_over_tp
from suites.kit.programs import (
    CONSTANT,
    apply,
    data_mesh,
    gradients,
    layouts,
    loss_of,
    parameters,
    tensors,
    whole_mesh,
    write,
)
from suites.kit.strategies import cases_of, training_cases
from suites.oracle.layout import own
from suites.oracle.sharded import Resting

#: What is required of a parameter, on meta and on the device.
FACTS = (*SPREAD, "size", "local size", "device")
#: Below this a gradient may be too small for an optimizer to move a float32 weight by it.
TINY = 1e-4


@dataclass(frozen=True)
class MetaCase(ParallelCase):
    """A net that is sharded on meta.

    ``default_mesh`` leaves the mesh to ``fully_shard``; ``inside`` calls it within the meta context, where the net is
    built in any case. ``given`` are the blocks that get memory in a test of what is left on meta.
    """

    default_mesh: bool = False
    inside: bool = True
    given: tuple[int, ...] = ()


def meta_cases(at_least: int = 1, exact: bool = False) -> st.SearchStrategy[MetaCase]:
    """A net of one mesh axis that begins on meta."""
    cases = training_cases(at_least=at_least, exact=exact)
    either = {"default_mesh": st.booleans(), "inside": st.booleans()}
    return cases_of(MetaCase, cases, axes=st.just(("dp",)), **either)


@st.composite
def cases_in_part(draw: st.DrawFn) -> MetaCase:
    """The same where some blocks but not all are given memory."""
    case = draw(meta_cases())
    last = len(case.net.blocks) - 1
    return replace(case, given=tuple(sorted(draw(st.sets(st.integers(0, last), max_size=last)))))


def on_meta(rank: Rank, case: MetaCase) -> nn.Sequential:
    """Build the net on meta and cut it there over all axes."""
    options: dict[str, Any] = {"reshard_after_forward": case.reshard_after_forward}
    its_own = case.default_mesh and default_device_type() == rank.device.type
    options["mesh"] = None if its_own else data_mesh(rank, case)
    with torch.device("meta"):
        net = cut_over_tp(rank, case, case.net.build().to(case.torch_dtype))
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


def facts_of(rank: Rank, case: MetaCase, make: Callable[[Rank, MetaCase], nn.Module]) -> dict[str, Any]:
    """What every parameter is."""
    return layouts(make(rank, case), whole_mesh(rank, case), *FACTS)


def left_unwritten(rank: Rank, case: MetaCase) -> dict[str, bool]:
    """Of every shard and buffer, whether ``reset_parameters`` of all modules left any of it as it was."""
    net = reset(rank, case)
    return {name: bool((tensor == CONSTANT).any()) for name, tensor in tensors(net).items()}


def reset(rank: Rank, case: MetaCase) -> nn.Sequential:
    """Write a constant over everything, then call ``reset_parameters`` of each module that has it."""
    net = materialized(rank, case)
    for tensor in tensors(net).values():
        tensor.fill_(CONSTANT)
    for module in net.modules():
        if callable(reset_parameters := getattr(module, "reset_parameters", None)):
            reset_parameters()
    return net


def overwritten(rank: Rank, case: MetaCase) -> dict[str, bool]:
    """Give each module memory of its own, inner ones first, and write to it; what does not hold that at the end.

    What was written to is kept, so that other memory cannot have the same numbers by chance.
    """
    net, kept = on_meta(rank, case), list[Tensor]()

    @torch.no_grad()
    def give(module: nn.Module) -> None:
        module.to_empty(device=rank.device, recurse=False)
        kept.extend(
            own(each).fill_(CONSTANT) for each in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        )

    net.apply(give)
    return {name: bool((tensor != CONSTANT).any()) for name, tensor in tensors(net).items()}


def step_after_reset(rank: Rank, case: MetaCase) -> dict[str, Any]:
    """One step of Adam: whether the loss is finite, and which parameters got no gradient or did not follow it."""
    net = reset(rank, case)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    before = parameters(net)
    loss = loss_of(rank, case, net)
    loss.backward()
    found = gradients(net)
    large = {name: gradient.abs() > TINY for name, gradient in found.items() if gradient is not None}
    optimizer.step()
    after = parameters(net)
    return {
        "finite": bool(loss.isfinite()),
        "without gradient": [name for name in found if name not in large],
        "stuck": [name for name, moves in large.items() if bool((moves & (after[name] == before[name])).any())],
    }


class FromMeta(Resting):
    """A net that began on meta, on one rank."""

    def made(self) -> Any:
        """The net with the case's weights written into its shards."""
        net = materialized(self.rank, self.case)
        write(self.rank, self.case, net)
        return net


class FromFullState(FromMeta):
    """The same, loaded by torch's tools from whole tensors."""

    def made(self) -> Any:
        """The net with the case's weights, all of which every rank gives."""
        net, state = on_meta(self.rank, self.case), self.case.build().to(self.rank.device).state_dict()
        set_model_state_dict(net, state, options=StateDictOptions(full_state_dict=True))
        return net


def forward_too_early(rank: Rank, case: MetaCase) -> None:
    """Run forward while parameters of blocks that were not ``given`` memory are on meta."""
    net = on_meta(rank, case)
    for place in case.given:
        net[place].to_empty(device=rank.device)
    net(case.inputs(0, rank.number).to(rank.device))


def names_left_on_meta(case: MetaCase) -> list[str]:
    """The parameters that are on meta."""
    names = [name for name, _ in case.net.build().named_parameters()]
    return [name for name in names if int(name.partition(".")[0]) not in case.given]


def names_in(message: str, case: MetaCase) -> list[str]:
    """The parameters that a message names, in the net's order."""
    words = re.findall(r"[\w.]*\w", message)
    return [name for name, _ in case.net.build().named_parameters() if name in words]
