"""Which form of each parameter a module holds: the sharded one, the full one, or one sharded over fewer ranks.

A weight of four rows on four ranks is registered on rank 1 so::

    sharded: DTensor, row 1    unsharded: a plain tensor, rows 0 to 3    resharded to groups of 2: DTensor, rows 2, 3
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.kit.cases import NetCase, Reshard, TrainingCase
from suites.kit.programs import ShardedStack, apply, loss_of, sharded
from suites.kit.strategies import stacks, training_cases, world_sizes
from suites.oracle.layout import is_dtensor, local, put_together, shard
from suites.oracle.situation import STEP

Facts = dict[str, dict[str, Any]]
#: How long, in seconds, other threads have to let go of a tensor that they have communicated.
LETTING_GO = 1.0
#: The acts that set resharding later: whether to, and whether also below the root.
RESHARDING = {
    f"set reshard_after_forward {then}{of}": (then, not of) for then in (True, False) for of in ("", " in root")
}


#: What says neither whether to reshard nor to how many ranks, some of it as if read as a number.
NO_SETTINGS = {repr(value): value for value in ("always", "True", "1", 1.0, 0.5)}


@st.composite
def cases_of_no_size(draw: st.DrawFn) -> TrainingCase:
    """Resharding to groups of a size that the ranks cannot be cut into."""
    case = draw(training_cases(at_least=1))
    size = case.world_size
    sizes = [0, size + 1, 2 * size, -1, -size, *(n for n in range(2, size) if size % n)]
    found: TrainingCase = replace(case, reshard_after_forward=draw(st.sampled_from(sizes)))
    return found


@st.composite
def group_cases(draw: st.DrawFn, /, ends: bool = False) -> TrainingCase:
    """Resharding to groups of some ranks of the world; with ``ends``, of one rank or of all.

    All ranks and all groups divide the rows of every parameter: of others, the layout is unspecified.
    """
    size = draw(world_sizes(at_least=2 if ends else 4, power_of_two=True))
    groups = [1, size] if ends else [n for n in range(2, size) if size % n == 0]
    net = draw(stacks(most_blocks=2, smallest=4, largest=4))
    return draw(training_cases(net=net, world_size=size, reshard_after_forward=draw(st.sampled_from(groups))))


def shard_as_told(rank: Rank, case: TrainingCase) -> None:
    """Shard with the case's setting, or with what is none."""
    told: Any = NO_SETTINGS.get(case.how, case.reshard_after_forward)
    apply(rank, case, case.build(), reshard_after_forward=told)


def facts(net: nn.Module) -> Facts:
    """Of every registered parameter, whether it is a DTensor, and what this rank holds of it."""
    asks_for(Feature.PLAIN_FORWARD)
    return described(dict(net.named_parameters()))


def described(tensors: dict[str, Tensor]) -> Facts:
    """The same of tensors by name."""
    return {name: fact(tensor) for name, tensor in tensors.items()}


def fact(tensor: Tensor) -> dict[str, Any]:
    """The same of one."""
    return {"is": kind(tensor), "local": local(tensor)}


def kind(tensor: Tensor | None) -> str:
    """``"a DTensor"``, ``"a plain tensor"`` or ``"nothing"``."""
    asks_for(Feature.DTENSORS)
    if tensor is None:
        return "nothing"
    return "a DTensor" if is_dtensor(tensor) else "a plain tensor"


def played(rank: Rank, case: TrainingCase, *acts: str) -> Any:
    """The sharded net after these acts, of which a forward may wait for its backward."""
    stack = ShardedStack(rank, case)
    stack.do_all(acts)
    return stack.net


def unshard_all(case: NetCase) -> list[str]:
    """The acts that unshard every sharded module."""
    return ["unshard", *(f"unshard {place}" for place in case.sharded)]


def after(rank: Rank, case: TrainingCase, *acts: str) -> Facts:
    """What is registered after these acts."""
    return facts(played(rank, case, *acts))


def whole_after_forward(rank: Rank, case: TrainingCase) -> dict[str, dict[str, Any]]:
    """Of every parameter that is registered after a forward, what it is, whether it trains, and all of it."""
    held = dict(played(rank, case, *case.acts, "forward").named_parameters())
    return {
        "is": {name: kind(p) for name, p in held.items()},
        "trains": {name: p.requires_grad for name, p in held.items()},
        "full": {name: put_together(p) for name, p in held.items()},
    }


def gradients_after_backward(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Of every gradient, whether it is a DTensor, and the size of this rank's part."""
    net = played(rank, case, "forward", "backward")
    grads = {name: p.grad for name, p in net.named_parameters()}
    return {name: {"is": kind(g), "size": [] if g is None else list(local(g).size())} for name, g in grads.items()}


def when_run(net: nn.Module, note: Callable[[Tensor], Any]) -> dict[str, Any]:
    """What will be noted, by name, of each parameter that a layer finds registered when it runs."""
    seen: dict[str, Any] = {}

    def before(layer: nn.Module, prefix: str) -> None:
        seen.update({f"{prefix}.{name}": note(parameter) for name, parameter in layer.named_parameters()})

    for prefix, layer in layers(net):
        layer.register_forward_pre_hook(lambda layer, _, prefix=prefix: before(layer, prefix))
    return seen


def seen_in_forward(rank: Rank, case: TrainingCase) -> Facts:
    """What every layer finds registered when it runs."""
    asks_for(Feature.PLAIN_FORWARD)
    net = sharded(rank, case)
    seen = when_run(net, fact)
    loss_of(rank, case, net).backward()
    return seen


def layers(net: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """The modules that have parameters and no modules of their own, by name."""
    return [(name, module) for name, module in net.named_modules() if isinstance(module, nn.Linear)]


def bytes_kept(rank: Rank, case: TrainingCase) -> dict[str, int]:
    """Of every full parameter that a layer ran with under ``no_grad``, how many bytes are held after forward."""
    asks_for(Feature.PLAIN_FORWARD)
    net = sharded(rank, case)
    used = when_run(net, weakref.ref)
    with torch.no_grad():
        loss_of(rank, case, net)
    return bytes_of(used)


def addresses_kept(rank: Rank, case: TrainingCase, where: str) -> Facts:
    """Of every parameter, whether its memory is held after a pass and a step, and is where the next pass has it.

    Of those ``where`` memory is to be kept; then none any more, and how many bytes are held all the same.
    """
    asks_for(Feature.PLAIN_FORWARD)
    net = ShardedStack(rank, case)
    net.tell("set_keep_unsharded_storage", True, where)
    seen = when_run(net.net, lambda parameter: (parameter.data_ptr(), parameter.detach()))
    net.do_all(STEP)
    first = dict(seen)
    held = {name: _bytes(memory) > 0 for name, (_, memory) in first.items()}
    net.do_all(STEP)
    found = {name: {"held": held[name], "stays": held[name] and seen[name][0] == first[name][0]} for name in seen}
    net.tell("set_keep_unsharded_storage", False, where)
    used = when_run(net.net, weakref.ref)
    net.do_all(STEP)
    return {"kept": found, "bytes once freed": bytes_of(used)}


def bytes_of(used: dict[str, weakref.ref[Tensor]]) -> dict[str, int]:
    """How many bytes each of them still holds, when c10d has let go: its threads may do so after a wait returns."""
    gc.collect()
    until = time.monotonic() + LETTING_GO
    while True:
        held = {name: _bytes(reference()) for name, reference in used.items()}
        if not any(held.values()) or time.monotonic() > until:
            return held
        time.sleep(0)  # let those threads run


def _bytes(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.untyped_storage().nbytes()


def forms_of(case: TrainingCase, number: int, root: Reshard, children: Reshard) -> Facts:
    """What rank ``number`` must find registered when the root and the children are resharded so.

    True is the sharded form, False the full one, and an int the part that is shared by so many ranks.
    """
    named = case.build().named_parameters()
    return {name: form(p, number, case, root if case.group_of(name) == "root" else children) for name, p in named}


def form(full: Tensor, number: int, case: TrainingCase, resharded: Reshard) -> dict[str, Any]:
    """One parameter in one of the three forms."""
    if resharded is False:
        return {"is": "a plain tensor", "local": full.detach()}
    parts = case.shards if resharded is True or resharded is None else int(resharded)
    return {"is": "a DTensor", "local": shard(full.detach(), parts, number % parts)}
