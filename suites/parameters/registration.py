"""Which parameter objects are registered while a sharded net is used, and what memory is behind them.

Rank 0 of two holds row 0 of [[1.], [2.]] in an ``nn.Parameter`` that is the same object after every step; in between, a
layer sees another, plain one with both rows, whose 8 bytes are gone once it is resharded.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from harness.collective_trace.torch_names import all_gather
from harness.worlds.rank import Rank
from suites.kit.cases import SPREAD, TrainingCase
from suites.kit.programs import ShardedStack, layout, loss_of, sharded
from suites.kit.registered import Facts, bytes_of, facts, sharded_modules, when_run
from suites.passes.passes import Route

#: What a gradient has in common with its parameter.
GRADIENT = (*SPREAD, "size", "local size", "dtype")


class Counting:
    """A hook that counts its calls."""

    calls = 0

    def __call__(self, *_: Any) -> Any:
        """Count."""
        self.calls += 1


class CountingGather(Counting):
    """A right all-gather that counts its calls."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather."""
        self.calls += 1
        return all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


def repeated(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """How often each sharded module has gathered after calls that are each made twice, and what is registered."""
    stack, found = ShardedStack(rank, case), {}
    counters = [CountingGather() for _ in stack.places()]
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


class Looking(ShardedStack):
    """A net on one rank, whose parameters and gradients are looked at as objects."""

    def see_same(self) -> dict[str, bool]:
        """Whether each registered parameter is the one that ``fully_shard`` registered."""
        return {name: parameter is self.held[name] for name, parameter in self.net.named_parameters()}

    def see_layouts(self) -> dict[str, Any]:
        """How each gradient lies on the mesh of its parameter."""
        return {name: layout(p.grad, p.device_mesh, *GRADIENT) for name, p in self.held.items()}


def same_objects(rank: Rank, case: TrainingCase) -> dict[str, dict[str, bool]]:
    """Whether objects are the same after all that leaves parameters sharded."""
    net = Looking(rank, case)
    passes = [("forward", "backward"), ("step",), ("drop",)] * 2 + [("look", "reshard")]
    found = {}
    for place, acts in enumerate(passes):
        net.do_all(acts)
        found[f"{place}: {acts[-1]}"] = net.see_same()
    return found


def gradient_layouts(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """How gradients lie after a backward."""
    net = Looking(rank, case)
    net.do_all(("forward", "backward"))
    return net.see_layouts()


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
    fully_shard = rank.implementation.fully_shard
    assert fully_shard is not None
    for module in (*(net[place] for place in case.sharded), net):
        fully_shard(module, mesh=rank.mesh(), reshard_after_forward=True)
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
    """Bytes held by the full parameters that layers ran with: before backward, when resharded, and after it."""
    net = sharded(rank, case)
    used = when_run(net, weakref.ref)
    loss = loss_of(rank, case, net)
    for module in sharded_modules(net, case):
        module.reshard()
    before = bytes_of(used)
    loss.backward()
    return {"before backward": before, "after": bytes_of(used)}


UNWAITED = Route(actions=unwaited)
RESHARDED_BETWEEN = Route(actions=("forward", "reshard", "unshard", "reshard", "backward"))
