"""Registered parameters: which objects they are, what memory is behind them, and what users do to them.

Rank 0 of two holds row 0 of [[1.], [2.]] in an ``nn.Parameter`` that is the same object after every step; in between, a
layer sees another, plain one with both rows, whose 8 bytes are gone once it is resharded. If each rank doubles its row
and takes 1 from it, the next forward on both sees [[1.], [3.]].
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from harness.vendor import Claimed, Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.kit.cases import SPREAD, Stack, TrainingCase
from suites.kit.own_collectives import OwnGather
from suites.kit.programs import ShardedStack, apply, laid_as, layout, loss_of, sharded
from suites.kit.registered import Facts, bytes_of, facts, played, when_run
from suites.oracle.layout import own, shard
from suites.oracle.sharded import Resting, State, played_on
from suites.passes.autograd_routes import ALONE
from suites.passes.pass_programs import Walking
from suites.passes.pass_strategies import pass_cases
from suites.passes.passes import Blocks, Found, Pass, Route, shard_by_plan

#: What a gradient has in common with its parameter.
GRADIENT = (*SPREAD, "size", "local size", "dtype")


def repeated(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """How often each sharded module has gathered after calls that are each made twice, and what is registered."""
    stack, found = ShardedStack(rank, case), {}
    counters = [OwnGather() for _ in stack.places()]
    for place, counter in zip(stack.places(), counters, strict=True):
        stack.net.get_submodule(place).set_custom_all_gather(counter)
    at_once, later = ([f"{verb} {place}" for place in stack.places()] for verb in ("unshard", "begin"))
    for when, acts in {"unsharded": (*later * 2, "wait", *at_once), "resharded": ("reshard", "reshard")}.items():
        stack.do_all(acts)
        found[when] = {"gathers": [counter.calls for counter in counters], "facts": facts(stack.net)}
    return found


def unwaited(case: TrainingCase, step: int) -> tuple[str, ...]:
    """Forward and backward after gathers that were started and not waited for."""
    return ("begin", *(f"begin blocks.{place}" for place in case.sharded), "forward", "backward")


# Which object is registered.


def gradient_layouts(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """How each gradient lies on the mesh of its parameter."""
    held = played(rank, case, "forward", "backward").named_parameters()
    return {name: layout(p.grad, p.device_mesh, *GRADIENT) for name, p in held}


def same_objects(rank: Rank, case: TrainingCase) -> dict[str, dict[str, bool]]:
    """Whether each registered parameter is the one of the start, after all that leaves parameters sharded."""
    stack = ShardedStack(rank, case)
    passes = [("forward", "backward"), ("step",), ("drop",)] * 2 + [("look", "reshard")]
    found = {}
    for place, acts in enumerate(passes):
        stack.do_all(acts)
        found[f"{place}: {acts[-1]}"] = {name: p is stack.held[name] for name, p in stack.net.named_parameters()}
    return found


def seen_by_hooks(rank: Rank, case: TrainingCase) -> dict[str, Facts]:
    """What forward hooks of the sharded modules find registered in them, by when the hook was registered."""
    seen: dict[str, Facts] = {}
    net = case.build()

    def note(when: str, place: str) -> Any:
        def hook(module: nn.Module, *_: Any) -> None:
            own = {name: fact for name, fact in facts(module).items() if place or name.partition(".")[0] not in below}
            seen.setdefault(when, {}).update({f"{place}{name}": fact for name, fact in own.items()})

        return hook

    below = {str(place) for place in case.sharded}
    places = {"": net, **{f"{place}.": net[place] for place in case.sharded}}
    for place, module in places.items():
        module.register_forward_pre_hook(note("before forward, registered first", place))
        module.register_forward_hook(note("after forward, registered first", place))
    apply(rank, case, net, reshard_after_forward=True)
    for place, module in places.items():
        module.register_forward_pre_hook(note("before forward, registered last", place))
    loss_of(rank, case, net).backward()
    return {when: dict(sorted(found.items())) for when, found in sorted(seen.items())}


def seen_by_layers(rank: Rank, case: TrainingCase) -> dict[str, list[bool]]:
    """Of every parameter that a layer runs with: whether it is an ``nn.Parameter``, a leaf of autograd, and trains."""
    net = sharded(rank, case)
    seen = when_run(net, lambda p: [isinstance(p, nn.Parameter), p.is_leaf, p.requires_grad])
    loss_of(rank, case, net).backward()
    return seen


def memory_saved_by_autograd(rank: Rank, case: TrainingCase) -> dict[str, dict[str, int]]:
    """Bytes held by the full parameters that layers ran with, when resharded before backward, and after it."""
    asks_for(Feature.PLAIN_FORWARD)
    stack = ShardedStack(rank, case)
    used = when_run(stack.net, weakref.ref)
    stack.do_all(("forward", "reshard"))
    before = bytes_of(used)
    stack.do_all(("backward", "reshard"))
    return {"before backward": before, "after": bytes_of(used)}


UNWAITED = Route(actions=unwaited)
RESHARDED_BETWEEN = Route(actions=("forward", "reshard", "unshard", "reshard", "backward"))


# What users do.


def edited(p: Pass) -> Found:
    """A forward, after which all parameters are changed in place: by themselves, their data or their local parts."""
    with torch.no_grad():
        outputs = p.net(p.inputs()).clone()
        for module in p.net.modules():
            p.tell(module, "reshard")
        for parameter in p.net.parameters():
            tensor = own(parameter) if p.case.how == "local" else parameter
            (tensor.data if p.case.how == "data" else tensor).mul_(2).sub_(1)
    yield {"outputs": outputs}


EDITED = Route(edited, actions=ALONE)


def replaced(implementation: Claimed, case: TrainingCase, net: Any, **options: Any) -> None:
    """Shard a net of other numbers, and then give it those that it had: load them, assign them, or set each."""
    full = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2).sub_(1)
    shard_by_plan(implementation, case, net, **options)
    mesh = options["mesh"]
    asks_for(Feature.ROW_LAYOUT)
    mine = {name: shard(whole, mesh.size(), mesh.get_local_rank()).clone() for name, whole in full.items()}
    new = {name: laid_as(parameter, mine[name]) for name, parameter in net.named_parameters()}
    if case.how != "setattr":
        net.load_state_dict(new, assign=case.how == "assign")
        return
    for name, tensor in new.items():
        owner, _, key = name.rpartition(".")
        setattr(net.get_submodule(owner), key, nn.Parameter(tensor))


class Flat(nn.Module):
    """A linear layer that runs with what it keeps in a list besides, as recurrent ones do."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.flat: list[Any] = [None, None]
        self.weight, self.bias = layer.weight, layer.bias

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("weight", "bias"):
            self.flat[name == "bias"] = value

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.flat = [self.weight, self.bias]
        return self

    def forward(self, x: Tensor) -> Tensor:
        """As any linear layer."""
        return nn.functional.linear(x, *self.flat)


class FlatBlocks(Blocks):
    """Such layers, one after the other."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(stack)
        self.blocks = nn.ModuleList(map(Flat, self.blocks))


KEPT_TWICE = Route(net=FlatBlocks)
REPLACED = Route(spread=replaced)


# Conversions.


class Sum(Blocks):
    """All blocks run on the inputs, and their outputs are added: gradients then need few bits."""

    def forward(self, x: Tensor) -> Any:
        """``(batch, dim)`` to the same."""
        return sum(block(x) for block in self.blocks)


@dataclass(frozen=True)
class DtypeCase(TrainingCase):
    """The net is converted before each step, from the second on after an evaluation and ``by_way_of`` another dtype.

    ``computes`` is the policy's ``param_dtype``, if there is a policy.
    """

    dtypes: tuple[str, ...] = ()
    by_way_of: str = ""
    computes: str = ""


DTYPES = st.sampled_from(["float64", "bfloat16", "float32", "float16"])


@st.composite
def dtype_cases(draw: st.DrawFn, moment: Literal["first", "and back", "for good"]) -> DtypeCase:
    """Conversions before the first step only, or between steps and back, or to stay."""
    start, later, last = draw(st.lists(DTYPES, min_size=3, max_size=3, unique=True))
    dtypes = {"first": (later,) * 3, "and back": (start,) * 3, "for good": (start, later, last)}[moment]
    plain = vars(draw(pass_cases(plain=True, steps=3, batch=2)))
    return DtypeCase(**{**plain, "dtype": start, "dtypes": dtypes}, by_way_of=later if moment == "and back" else "")


def converted(p: Pass) -> Found:
    """Convert the net, then train; in which dtype parameters are, outputs come, and their values if it holds them."""
    if p.batch > 0:
        with torch.no_grad():
            p.net(p.inputs())
    at_rest = []
    for dtype in filter(None, (p.case.by_way_of if p.batch > 0 else "", p.case.dtypes[p.batch])):
        p.net.to(getattr(torch, dtype))
        at_rest.append({name: str(q.dtype) for name, q in p.net.named_parameters()})
    outputs = p.net(p.inputs())
    p.loss(outputs).backward()
    is_exact = outputs.dtype.itemsize >= 4 and not p.case.computes
    yield {"at rest": at_rest, "outputs": str(outputs.dtype), "values": outputs.detach() if is_exact else None}


CONVERTED = Route(converted, net=Sum, actions=ALONE)


def converted_under_policy(rank: Rank, case: DtypeCase, route: Route) -> list[State]:
    """The same under a policy."""
    policy = rank.implementation.mixed_precision_policy(param_dtype=getattr(torch, case.computes))
    return played_on(Walking(rank, case, route, mp_policy=policy))


# Sharding layer by layer.


class BuiltInLayers(Resting):
    """A net of which one layer after the other is built and sharded."""

    def made(self) -> Any:
        """Later layers may lie where earlier ones lay."""
        fully_shard, mesh, layers = self.rank.implementation.fully_shard, self.rank.mesh(), []
        for full in self.case.build():
            layer = nn.Linear(full.in_features, full.out_features, dtype=full.weight.dtype)
            layer.load_state_dict(full.state_dict())
            layers.append(fully_shard(layer.to(self.rank.device), mesh=mesh))
        return fully_shard(nn.Sequential(*layers), mesh=mesh)
