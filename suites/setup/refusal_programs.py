"""What may be refused: what is asked of a small net, and what comes of it: an error, or a pass like any other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.placement_types import Shard

from harness.trial.refusals import ERRORS, TYPE_ERRORS, refused
from harness.vendor import Feature
from harness.vendor.bounds import averages
from harness.worlds.rank import Rank
from suites.oracle.layout import own, put_together
from suites.setup.entry_nets import PlainCase, Sharder, linear, sharder
from suites.setup.refused_nets import Scaled, TiedTwice, TwoDtypes, Within, in_a_row, then_transposed, with_bias

#: What is done with ``fully_shard`` over all ranks and a net; the net to run then, if it is another.
Ask = Callable[[Sharder, Any, Rank], "nn.Module | None"]


@dataclass(frozen=True)
class Asked:
    """What is asked of which net, which may be ``sharded`` before; and what a refusal names, one of these.

    ``feature`` is what the question is about, if that need not be claimed.
    """

    ask: Ask
    make: Callable[[], nn.Module]
    names: tuple[str, ...]
    error: tuple[str, ...] = ERRORS
    sharded: bool = False
    feature: Feature = Feature.FULLY_SHARD


# What is asked.


def sharding(of: Callable[[Any], Any] = lambda net: net, mesh: tuple[int, ...] = (), **options: Any) -> Ask:
    """To shard the net, or what is said ``of`` it; over a mesh of so many ranks and all on a last axis."""

    def ask(shard: Sharder, net: Any, rank: Rank) -> None:
        shard(of(net), **options, **({"mesh": rank.mesh((*mesh, rank.size))} if mesh else {}))

    return ask


def one_by_one(shard: Sharder, net: Any, rank: Rank) -> None:
    """To shard each layer apart, and then the net."""
    for module in (*net, net):
        shard(module)


def setting(setter: str, value: Callable[[], Any]) -> Ask:
    """To give a setter of the net a value."""
    return lambda shard, net, rank: getattr(net, setter)(value())


def in_groups_of_none(shard: Sharder, net: Any, rank: Rank) -> None:
    """Groups that all ranks make, for a net of which each rank has a vector for itself."""
    subject = rank.implementation
    alone = subject.shard_mesh_info(rank.mesh((rank.size, 1), ("ranks", "alone"))["alone"])

    def place(parameter: nn.Parameter) -> Any:
        return subject.shard_placement_result(Shard(0), alone) if parameter.dim() == 1 else None

    shard(net, reshard_after_forward=rank.size, shard_placement_fn=place)


def copied(shard: Sharder, net: Any, rank: Rank) -> nn.Module:
    """A deep copy, which does not notice that the net it is a copy of is lost."""
    found: nn.Module = copy.deepcopy(net)
    for parameter in net.parameters():
        own(parameter).zero_()
    return found


PLACED = partial(Asked, feature=Feature.SHARD_PLACEMENT)
SET = partial(Asked, make=linear, error=TYPE_ERRORS, sharded=True)
_DONE = ("sharded", "managed", "applied", "wrapped")
ONCE = (
    *("once", "twice", "FSDPModule", "already been applied"),
    *(words for done in _DONE for words in (f"already {done}", f"{done} already")),
)
UNEVEN = ("uneven", "unevenly", "divide", "divisible", "even", "evenly")
SIZES = ("reshard_after_forward", "factor", "divisor", "divide", "divisible")
#: What may be refused as soon as it is asked.
AT_ONCE = {
    "twice": Asked(sharding(), linear, ONCE, sharded=True),
    "same twice": Asked(sharding(lambda net: [net, net]), linear, ONCE, feature=Feature.MODULE_LISTS),
    "list": Asked(
        sharding(lambda net: net.layers),
        lambda: Within(nn.ModuleList(in_a_row().children())),
        ("forward", "container", "ModuleList"),
    ),
    "dict": Asked(
        sharding(lambda net: net.layers),
        lambda: Within(nn.ModuleDict(dict(zip("ab", in_a_row().children(), strict=True)))),
        ("forward", "container", "ModuleDict"),
    ),
    "deepcopy": Asked(copied, linear, ("deepcopy", "deep copy", "copy", "pickle"), error=TYPE_ERRORS, sharded=True),
    "scalars": Asked(sharding(), Scaled, ("scale", "scalar", "dim", "1D", "0D", "0-dim")),
    "nameless axes": Asked(sharding(mesh=(1,)), linear, ("mesh_dim_names", "named", "mesh"), feature=Feature.HSDP),
    "three axes": Asked(sharding(mesh=(1, 1)), linear, ("mesh", "DeviceMesh", "1D", "2D", "3D")),
    "types of resharding": Asked(
        sharding(reshard_after_forward="always"), linear, ("reshard_after_forward", "bool"), error=TYPE_ERRORS
    ),
    "sizes of groups": Asked(sharding(reshard_after_forward=3), linear, SIZES, feature=Feature.RESHARD_TO_GROUP),
    "set resharding": SET(
        setting("set_reshard_after_forward", lambda: 2),
        names=("reshard_after_forward", "bool"),
        feature=Feature.UNSHARD,
    ),
    "set what comes next": SET(
        setting("set_modules_to_forward_prefetch", lambda: [linear()]),
        names=("FSDPModule", "fully_shard", "sharded"),
        feature=Feature.PREFETCH,
    ),
    "set room": SET(
        setting("set_reduce_scatter_max_input_buffers", lambda: 0),
        names=("reduce_scatter_max_input_buffers", "max_input_buffers", "buffer"),
        feature=Feature.INPUT_BUFFERS,
    ),
}
#: What may be refused for the sake of a parameter, which others may come before.
AMID = {
    "inner last": Asked(sharding(lambda net: net[0]), in_a_row, (*ONCE, "inner", "order", "mesh"), sharded=True),
    "dims": PLACED(
        sharding(shard_placement_fn=lambda parameter: Shard(1)),
        with_bias,
        ("dim 1", "dim=1", "Shard(1)", "Shard(dim=1)", "shard_placement_fn", "bias", "out of range"),
        error=(*ERRORS, "IndexError"),
    ),
    "placements": PLACED(
        sharding(shard_placement_fn=lambda parameter: object() if parameter.dim() == 1 else None),
        with_bias,
        ("shard_placement_fn", "Shard"),
        error=TYPE_ERRORS,
    ),
    "sizes of other groups": Asked(in_groups_of_none, with_bias, SIZES, feature=Feature.PARAMETER_MESH),
    "not contiguous": Asked(sharding(), then_transposed, ("contiguous", "stride")),
    "uneven columns": PLACED(sharding(shard_placement_fn=lambda parameter: Shard(1)), in_a_row, UNEVEN),
    "uneven columns from the end": PLACED(sharding(shard_placement_fn=lambda parameter: Shard(-1)), in_a_row, UNEVEN),
}
#: What may be refused in the first forward.
LATER = {
    "list as root": Asked(
        sharding(lambda net: list(net.children())), in_a_row, ("root", "list"), feature=Feature.MODULE_LISTS
    ),
    "two dtypes": Asked(sharding(), TwoDtypes, ("dtype",)),
    "tied apart": Asked(one_by_one, TiedTwice, ("shared", "tied", "share", "weight")),
}
ASKED = {**AT_ONCE, **AMID, **LATER}


# What comes of it.


def made(rank: Rank, asked: Asked) -> nn.Module:
    """The net before anything is asked of it."""
    net = asked.make().to(rank.device)
    return sharder(rank)(net) if asked.sharded else net


def ask(rank: Rank, case: PlainCase) -> dict[str, Any]:
    """Ask it, and take a pass."""
    asked = ASKED[case.way]
    net = made(rank, asked)
    return passed(asked.ask(sharder(rank), net, rank) or net, rank.number, rank.device)


def ask_in_vain(rank: Rank, case: PlainCase) -> dict[str, Any]:
    """Ask it; where it is refused, what is no longer as it was, and if nothing a pass: else neither."""
    asked = ASKED[case.way]
    net = made(rank, asked)
    before = parts_of(net)
    if refused(rank, case, lambda *_: asked.ask(sharder(rank), net, rank)) is None:
        return {}
    after = parts_of(net)
    changed = sorted(part for part in {**before, **after} if not is_same(before.get(part), after.get(part)))
    return {"changed": changed, **({} if changed else passed(net, rank.number, rank.device))}


def passes_refused(rank: Rank, case: PlainCase) -> list[bool]:
    """Ask it, and take three passes: which of them are refused."""
    asked = ASKED[case.way]
    net = made(rank, asked)
    asked.ask(sharder(rank), net, rank)
    return [refused(rank, case, lambda *_: passed(net, rank.number, rank.device)) is not None for _ in range(3)]


def parts_of(net: nn.Module) -> dict[str, list[Any]]:
    """By what each is, the class, the hooks and the parameters of all modules."""
    found: dict[str, list[Any]] = {}
    for name, module in net.named_modules():
        kinds = (held for kind, held in vars(module).items() if kind.endswith("_hooks") and isinstance(held, dict))
        found[f"class of {name!r}"] = [type(module)]
        found[f"hooks of {name!r}"] = [hook for held in kinds for hook in held.values()]
    return {**found, **{f"parameter {name!r}": [parameter] for name, parameter in net.named_parameters()}}


def is_same(before: list[Any] | None, after: list[Any] | None) -> bool:
    """Whether both are the same objects."""
    return [id(each) for each in before or ()] == [id(each) for each in after or ()]


def passed(net: nn.Module, number: int, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The parameters of a net, its outputs for inputs that a rank's ``number`` decides, and gradients: all whole."""
    full = [put_together(parameter) for parameter in net.parameters()]
    outputs = net(torch.full((1, 2), 1.0 + number, device=device))
    outputs.sum().backward()
    gradients = [None if p.grad is None else put_together(p.grad, p) for p in net.parameters()]
    return {"parameters": full, "outputs": outputs.detach().double(), "gradients": gradients}


def due(asked: Asked, number: int, ranks: int, is_sharded: bool = True) -> dict[str, Any]:
    """What the unsharded net gives: gradients are the rank's own, or averages over all ranks of a sharded one."""
    each = [passed(asked.make(), other) for other in range(ranks)]
    if not is_sharded:
        return each[number]
    apart = zip(*(one["gradients"] for one in each), strict=True)
    return {**each[number], "gradients": [_reduced(found, ranks if averages() else 1) for found in apart]}


def _reduced(gradients: tuple[Tensor | None, ...], divisor: int) -> Tensor | None:
    there = [gradient for gradient in gradients if gradient is not None]
    return sum(there[1:], there[0]) / divisor if there else None
