"""Which parameter objects are registered while a sharded net is used, and what memory is behind them.

Rank 0 of two holds row 0 of [[1.], [2.]] in an ``nn.Parameter`` that is the same object after every step; in between, a
layer sees another, plain one with both rows, whose 8 bytes are gone once it is resharded.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.collective_trace.torch_names import all_gather
from harness.worlds.rank import Rank
from suites.kit.cases import TrainingCase
from suites.kit.programs import loss_of, sharded
from suites.kit.registered import Facts, bytes_of, facts, layers, sharded_modules, when_run
from suites.passes.passes import Route

# Explicit unsharding.


def unshard_and_wait(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """What ``unshard`` gives, and what is registered, once with ``async_op`` and once without."""
    net = sharded(rank, case)
    handles = [module.unshard(async_op=True) for module in sharded_modules(net, case)]
    for handle in handles:
        handle.wait()
    waited = facts(net)
    for module in sharded_modules(net, case):
        module.reshard()
    nothing = [module.unshard(async_op=False) for module in sharded_modules(net, case)]
    return {"waited": waited, "returned": [kind is None for kind in nothing], "at once": facts(net)}


class CountingGather:
    """A right all-gather that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Gather."""
        self.calls += 1
        return all_gather(output_tensor, input_tensor, group=group, async_op=async_op)


def repeated(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """How often each sharded module has gathered after calls that are each made twice, and what is registered."""
    net = sharded(rank, case)
    modules, found = sharded_modules(net, case), {}
    counters = [CountingGather() for _ in modules]
    for module, counter in zip(modules, counters, strict=True):
        module.set_custom_all_gather(counter)
    handles = [module.unshard(async_op=True) for _ in range(2) for module in modules]
    for handle in handles:
        handle.wait()
    for module in modules:
        module.unshard()
    found["unsharded"] = {"gathers": [counter.calls for counter in counters], "facts": facts(net)}
    for module in modules:
        module.reshard()
        module.reshard()
    found["resharded"] = {"gathers": [counter.calls for counter in counters], "facts": facts(net)}
    return found


def unwaited(case: TrainingCase, step: int) -> tuple[str, ...]:
    """Forward and backward after gathers that were started and not waited for."""
    return ("begin", *(f"begin blocks.{place}" for place in case.sharded), "forward", "backward")


# Which object is registered.


def same_objects(rank: Rank, case: TrainingCase) -> dict[str, dict[str, bool]]:
    """Whether each registered parameter is the one that ``fully_shard`` registered, after all that may follow."""
    net, found = sharded(rank, case), {}
    first = dict(net.named_parameters())
    optimizer = torch.optim.SGD(net.parameters(), lr=case.learning_rate)

    def look(when: str) -> None:
        found[when] = {name: parameter is first[name] for name, parameter in net.named_parameters()}

    for step in range(2):
        loss_of(rank, case, net).backward()
        look(f"backward {step}")
        optimizer.step()
        optimizer.zero_grad()
        look(f"step {step}")
    with torch.no_grad():
        loss_of(rank, case, net)
    for module in sharded_modules(net, case):
        module.reshard()
    look("forward and reshard")
    return found


def gradient_layouts(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """Of every gradient, whether it lies where its parameter lies, and its dtype."""
    net = sharded(rank, case)
    loss_of(rank, case, net).backward()
    return {name: _layout(parameter, parameter.grad) for name, parameter in net.named_parameters()}


def _layout(parameter: Any, grad: Any) -> dict[str, Any]:
    if not isinstance(parameter, DTensor) or not isinstance(grad, DTensor):
        return {"is": type(grad).__name__}
    return {
        "mesh": grad.device_mesh == parameter.device_mesh,
        "placements": grad.placements == parameter.placements,
        "size": [list(grad.shape), list(grad.to_local().shape)],
        "dtypes": [str(grad.dtype), str(grad.to_local().dtype)],
    }


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
    """Of every parameter that a layer runs with: whether it is an ``nn.Parameter``, and a leaf of autograd."""
    net = sharded(rank, case)
    seen: dict[str, list[bool]] = {}

    def note(layer: nn.Module, name: str) -> None:
        for key, parameter in layer.named_parameters():
            seen[f"{name}.{key}"] = [isinstance(parameter, nn.Parameter), parameter.is_leaf, parameter.requires_grad]

    for name, layer in layers(net):
        layer.register_forward_pre_hook(lambda layer, _, name=name: note(layer, name))
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
