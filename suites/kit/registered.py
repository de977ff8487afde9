"""Which form of each parameter a module holds: the sharded one, the full one, or one sharded over fewer ranks.

A weight of four rows on four ranks is registered on rank 1 so::

    sharded: DTensor, row 1    unsharded: a plain tensor, rows 0 to 3    resharded to groups of 2: DTensor, rows 2, 3
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.kit.cases import NetCase, Reshard, TrainingCase
from suites.kit.programs import apply, train
from suites.kit.strategies import net_cases, stacks, training_cases, world_sizes
from suites.oracle.layout import local, shard
from suites.oracle.situation import Trace

Facts = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SetLaterCase(TrainingCase):
    """Resharding is set to ``then`` after sharding, for the root alone unless ``recurse``."""

    then: bool = True
    recurse: bool = True


@dataclass(frozen=True)
class RefusedCase(NetCase):
    """A net to be sharded with a ``reshard_after_forward`` that means nothing."""

    value: int | float | str = 0


@st.composite
def refused_sizes(draw: st.DrawFn) -> RefusedCase:
    """Sizes of groups that the ranks cannot be cut into."""
    case = draw(net_cases())
    size = case.world_size
    between = [n for n in range(2, size) if size % n]
    value = draw(st.sampled_from([0, size + 1, 2 * size, -1, -size, *between]))
    return RefusedCase(**{name: getattr(case, name) for name in NetCase.__dataclass_fields__}, value=value)


@st.composite
def refused_types(draw: st.DrawFn) -> RefusedCase:
    """Words and floats, also such as would do if they were read as numbers."""
    case = draw(net_cases())
    value: str | float = draw(st.sampled_from(["always", "True", "1"]) | st.sampled_from([1.0, 0.5]))
    return RefusedCase(**{name: getattr(case, name) for name in NetCase.__dataclass_fields__}, value=value)


@st.composite
def set_later_cases(draw: st.DrawFn) -> SetLaterCase:
    """Any boolean setting, changed to any other."""
    case = draw(training_cases(reshard_after_forward=draw(st.sampled_from([None, True, False]))))
    fields = {name: getattr(case, name) for name in TrainingCase.__dataclass_fields__}
    return SetLaterCase(**fields, then=draw(st.booleans()), recurse=draw(st.booleans()))


@st.composite
def group_cases(draw: st.DrawFn, /, ends: bool = False) -> TrainingCase:
    """Resharding to groups of some ranks of the world; with ``ends``, of one rank or of all.

    All ranks and all groups divide the rows of every parameter: of others, the layout is unspecified.
    """
    size = draw(world_sizes(at_least=2 if ends else 4, power_of_two=True))
    groups = [1, size] if ends else [n for n in range(2, size) if size % n == 0]
    net = draw(stacks(most_blocks=2, smallest=4, largest=4))
    return draw(training_cases(net=net, world_size=size, reshard_after_forward=draw(st.sampled_from(groups))))


@st.composite
def uneven_group_cases(draw: st.DrawFn) -> TrainingCase:
    """Resharding to groups of two of four ranks, which need not divide rows."""
    return draw(training_cases(net=draw(stacks(most_blocks=2)), world_size=4, reshard_after_forward=2))


def shard_as_told(rank: Rank, case: RefusedCase) -> None:
    """Shard with the case's value."""
    apply(rank, case, case.build(), reshard_after_forward=case.value)


def facts(net: nn.Module) -> Facts:
    """Of every registered parameter, whether it is a DTensor, and what this rank holds of it."""
    return {name: {"is": kind(p), "local": local(p)} for name, p in net.named_parameters()}


def kind(tensor: Tensor | None) -> str:
    """``"a DTensor"``, ``"a plain tensor"`` or ``"nothing"``."""
    if tensor is None:
        return "nothing"
    return "a DTensor" if isinstance(tensor, DTensor) else "a plain tensor"


def prepared(rank: Rank, case: TrainingCase) -> nn.Sequential:
    """Build the net and shard it with the case's setting."""
    return apply(rank, case, case.build(), reshard_after_forward=case.reshard_after_forward)


def forward(rank: Rank, case: TrainingCase, net: nn.Module) -> Tensor:
    """The loss of this rank's first batch."""
    return case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number)


def after_forward(rank: Rank, case: TrainingCase) -> Facts:
    """What is registered after a forward that a backward may follow."""
    net = prepared(rank, case)
    loss = forward(rank, case, net)
    found = facts(net)
    loss.backward()
    return found


def whole_after_forward(rank: Rank, case: TrainingCase) -> Facts:
    """Of every parameter that is registered after a forward, whether it is a DTensor, and what ranks put together."""
    net = prepared(rank, case)
    loss = forward(rank, case, net)
    found = {name: {"is": kind(p), "full": whole(p)} for name, p in net.named_parameters()}
    loss.backward()
    return found


def whole(tensor: Tensor) -> Tensor:
    """A DTensor put together by its ranks; anything else as it is."""
    return tensor.full_tensor().detach().clone() if isinstance(tensor, DTensor) else tensor.detach().clone()


def after_forward_without_gradients(rank: Rank, case: TrainingCase) -> Facts:
    """What is registered after a forward under ``no_grad``."""
    net = prepared(rank, case)
    with torch.no_grad():
        forward(rank, case, net)
    return facts(net)


def after_backward(rank: Rank, case: TrainingCase) -> Facts:
    """What is registered after forward and backward."""
    net = prepared(rank, case)
    forward(rank, case, net).backward()
    return facts(net)


def after_backward_that_keeps(rank: Rank, case: TrainingCase) -> Facts:
    """The same where no module reshards after backward."""
    net: Any = prepared(rank, case)
    net.set_reshard_after_backward(False)
    forward(rank, case, net).backward()
    return facts(net)


def gradients_after_backward(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Of every gradient, whether it is a DTensor, and the size of this rank's part."""
    net = prepared(rank, case)
    forward(rank, case, net).backward()
    grads = {name: p.grad for name, p in net.named_parameters()}
    return {name: {"is": kind(g), "size": [] if g is None else list(local(g).size())} for name, g in grads.items()}


def after_set_later(rank: Rank, case: SetLaterCase) -> Facts:
    """What is registered after a forward whose setting came after sharding."""
    net: Any = prepared(rank, case)
    net.set_reshard_after_forward(case.then, recurse=case.recurse)
    with torch.no_grad():
        forward(rank, case, net)
    return facts(net)


def after_reshard(rank: Rank, case: TrainingCase) -> Facts:
    """What is registered after a forward and ``reshard`` of every sharded module."""
    net = prepared(rank, case)
    with torch.no_grad():
        forward(rank, case, net)
    for module in sharded_modules(net, case):
        module.reshard()
    return facts(net)


def after_unshard(rank: Rank, case: TrainingCase) -> dict[str, Facts]:
    """What is registered after ``unshard`` of the root, then of every sharded module, then ``reshard`` of them."""
    net = prepared(rank, case)
    found = {}
    for when, modules in {"root": [net], "all": sharded_modules(net, case)}.items():
        for module in modules:
            module.unshard()
        found[when] = facts(net)
    for module in sharded_modules(net, case):
        module.reshard()
    return {**found, "resharded": facts(net)}


def sharded_modules(net: Any, case: NetCase) -> list[Any]:
    """The root and the blocks that were sharded by themselves."""
    return [net, *(net[place] for place in case.sharded)]


def seen_in_forward(rank: Rank, case: TrainingCase) -> Facts:
    """What every layer finds registered when it runs."""
    net = prepared(rank, case)
    seen: Facts = {}
    for name, layer in layers(net):
        layer.register_forward_pre_hook(
            lambda module, _, name=name: seen.update({f"{name}.{key}": fact for key, fact in facts(module).items()})
        )
    forward(rank, case, net).backward()
    return seen


def train_with_each(rank: Rank, case: TrainingCase, settings: tuple[Reshard, ...]) -> list[Trace]:
    """Train the case from its start once with each setting."""
    return [train(rank, replace(case, reshard_after_forward=setting)) for setting in settings]


def layers(net: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The modules that have parameters and no modules of their own, by name."""
    return [(name, module) for name, module in net.named_modules() if isinstance(module, nn.Linear)]


def bytes_kept(rank: Rank, case: TrainingCase) -> dict[str, int]:
    """Of every full parameter that a layer ran with under ``no_grad``, how many bytes are held after forward."""
    net = prepared(rank, case)
    used = used_by_layers(net)
    with torch.no_grad():
        forward(rank, case, net)
    return bytes_of(used)


def used_by_layers(net: nn.Module) -> dict[str, weakref.ref[Tensor]]:
    """The parameters that layers run with, by name, from the next forward on."""
    used: dict[str, weakref.ref[Tensor]] = {}
    for name, layer in layers(net):
        layer.register_forward_pre_hook(
            lambda module, _, name=name: used.update(
                {f"{name}.{key}": weakref.ref(p) for key, p in module.named_parameters()}
            )
        )
    return used


def bytes_of(used: dict[str, weakref.ref[Tensor]]) -> dict[str, int]:
    """How many bytes each of them still holds."""
    gc.collect()
    return {name: kept(reference()) for name, reference in used.items()}


def kept(tensor: Tensor | None) -> int:
    """The bytes of the memory behind a tensor; 0 where the tensor or its memory is gone."""
    return 0 if tensor is None else tensor.untyped_storage().nbytes()


def forms_of(case: TrainingCase, number: int, root: Reshard, children: Reshard) -> Facts:
    """What rank ``number`` must find registered when the root and the children are resharded so.

    True is the sharded form, False the full one, and an int the part that is shared by so many ranks.
    """
    named = case.build().named_parameters()
    return {name: form(p, number, case, children if owner(name) in case.sharded else root) for name, p in named}


def owner(name: str) -> int:
    """The block that a parameter is in: 1 for ``"1.in_proj.weight"``."""
    return int(name.partition(".")[0])


def form(full: Tensor, number: int, case: TrainingCase, resharded: Reshard) -> dict[str, Any]:
    """One parameter in one of the three forms."""
    if resharded is False:
        return {"is": "a plain tensor", "local": full.detach()}
    parts = case.shards if resharded is True or resharded is None else int(resharded)
    return {"is": "a DTensor", "local": shard(full.detach(), parts, number % parts)}
