"""Implementations that are wrong where nets are not plain stacks: lists, sharing, branches, buffers, several calls."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from tests.mutants import name_of
from tests.mutants.hooking import in_forward
from tests.mutants.making import before, given, modules_of, mutant, right, unties


def forgets_the_rest_of_a_list(module: Any, **options: Any) -> Any:
    """Of modules given as a list, only the first one's gradients are kept."""
    result = right.fully_shard(module, **options)
    for other in modules_of(module)[1:]:
        for parameter in other.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.zero_())
    return result


def widens_dtypes(module: Any, options: dict[str, Any]) -> None:
    """Make float32 of what is narrower, so that a group has one dtype."""
    for parameter in module.parameters() if isinstance(module, nn.Module) else []:
        if parameter.dtype == torch.float16:
            parameter.data = parameter.data.float()


def shards_without_replicas(module: Any, options: dict[str, Any]) -> None:
    """Where there is one shard only, forget that there are replicas."""
    mesh = options["mesh"]
    alone = mesh.ndim == 2 and mesh["shard"].size() == 1
    options["mesh"] = mesh["shard"] if alone else mesh


#: When each module was sharded.
order: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def expects_the_order_of_modules(module: Any, **options: Any) -> Any:
    """Of modules within this one, those that were sharded after a later one beside them are never reduced."""
    result = right.fully_shard(module, **options)
    for each in modules_of(module):
        order[each] = len(order)
        sharded = [(name, one) for name, one in each.named_modules() if one in order]
        for (name, one), (other_name, other) in combinations(sharded, 2):
            if order[one] > order[other] and not f"{other_name}.".startswith(f"{name}." if name else ""):
                one.set_requires_gradient_sync(False, recurse=False)
    return result


def thaws(module: Any) -> None:
    """Let all parameters train."""
    for parameter in module.parameters():
        parameter.requires_grad_(True)


def invents_gradients(module: Any) -> None:
    """Start every gradient at zero."""

    def start(*_: Any) -> None:
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.grad is None and hasattr(parameter, "to_local"):
                parameter.grad = torch.zeros_like(parameter)

    module.register_forward_pre_hook(start)


def averages_over_all_but_idle_ranks(module: Any) -> None:
    """Reduce only what was used: the ranks that did not use a branch are not there when it is reduced."""
    module.set_reduce_scatter_unused_params = lambda *_, **__: None


def forgets_the_first_call(module: Any) -> None:
    """Where a module is given its own output, only the call that gave the last one has a gradient."""
    outputs: list[Any] = []

    def cut(module: Any, args: tuple[Any, ...]) -> Any:
        own = any(args and args[0] is output for output in outputs)
        return (args[0].detach(), *args[1:]) if own else None

    module.register_forward_pre_hook(cut, prepend=True)
    module.register_forward_hook(lambda module, args, output: outputs.append(output))


def cuts_rows(module: Any, options: dict[str, Any]) -> None:
    """Cut by rows, whatever was asked for."""
    if "shard_placement_fn" in options:
        options["shard_placement_fn"] = lambda parameter: Shard(0)


def checkpoint_that_detaches(module: nn.Module, **options: Any) -> nn.Module:
    """Run again on inputs without a past: what lies before has no gradient."""
    module.register_forward_pre_hook(lambda module, args: tuple(detached(each) for each in args))
    return module


def detached(value: Any) -> Any:
    """A tensor without its past."""
    return value.detach() if isinstance(value, Tensor) else value


def loses_what_is_not_reduced(module: Any) -> None:
    """Micro-batches that are not reduced at once are lost."""
    kept = [1.0]

    def set_sync(value: bool, *, recurse: bool = True) -> None:
        kept[0] = float(value)

    def lose(module: Any, args: Any, output: Any) -> Any:
        factor = kept[0]
        if isinstance(output, Tensor) and output.requires_grad and not factor:
            output.register_hook(lambda gradient: gradient * 0)

    module.set_requires_gradient_sync = set_sync
    module.register_forward_hook(lose)


def keeps_what_was_gathered_ahead(module: Any) -> None:
    """What was gathered ahead is never given up, and so is stale in the next step."""
    tell = module.set_modules_to_forward_prefetch

    def others(modules: Any) -> None:
        tell(modules)
        for each in modules:
            each.set_reshard_after_forward(False)
            each.set_reshard_after_backward(False)

    module.set_modules_to_forward_prefetch = others


def averages_statistics(module: Any) -> None:
    """Make running statistics those of all ranks."""

    def average(module: Any, *_: Any) -> None:
        for each in module.modules():
            if isinstance(each, nn.BatchNorm1d) and each.running_mean is not None:
                total = each.running_mean.clone()
                dist.all_reduce(total)
                each.running_mean = total / dist.get_world_size()

    module.register_forward_hook(average)


def forgets_buffers(module: Any, options: dict[str, Any]) -> None:
    """Make buffers anew that the state dict has not got."""
    kept = set(module.state_dict()) if isinstance(module, nn.Module) else set()
    for name, buffer in module.named_buffers() if kept else []:
        if name not in kept:
            buffer.zero_()


def joins_single_rows_as_they_come(module: Any, _: Any) -> None:
    """The parts of a parameter of one row, cut along its third dim, are put one after the other, not beside."""
    for each in modules_of(module):
        cut = {name: p for name, p in each.named_parameters() if isinstance(p, DTensor) and Shard(2) in p.placements}
        ranks = {name: p.device_mesh.size() for name, p in cut.items() if p.size(0) == 1}
        in_forward(partial(_join, ranks))(each)


@torch.no_grad()
def _join(ranks: dict[str, int], module: Any) -> None:
    for name, parameter in module.named_parameters():
        if name in ranks and not isinstance(parameter, DTensor):
            parts = [part.reshape(-1) for part in parameter.chunk(ranks[name], 2)]
            parameter.copy_(torch.cat(parts).view_as(parameter))


keeps_the_first_of_a_list = replace(right, name=name_of("generated/nets"), fully_shard=forgets_the_rest_of_a_list)
has_one_dtype = before("generated/stressed", widens_dtypes)
forgets_replicas = before("generated/hybrid", shards_without_replicas)
knows_one_order = replace(right, name=name_of("generated/order"), fully_shard=expects_the_order_of_modules)
makes_copies_of_what_is_shared = before("generated/tied", unties)
trains_what_is_frozen = mutant("generated/frozen", thaws)
invents = mutant("generated/branches", invents_gradients)
skips_unused = mutant("generated/branches-apart", averages_over_all_but_idle_ranks)
keeps_the_last_call = mutant("generated/twice", forgets_the_first_call)
joins_parts_wrongly = given("generated/placement", joins_single_rows_as_they_come)
always_cuts_rows = before("generated/placement", cuts_rows)
detaches_checkpoints = replace(right, name=name_of("generated/checkpointed"), checkpoint=checkpoint_that_detaches)
loses_micro_batches = mutant("generated/accumulation", loses_what_is_not_reduced)
keeps_prefetched = mutant("generated/prefetch", keeps_what_was_gathered_ahead)
shares_statistics = mutant("generated/buffers", averages_statistics)
resets_buffers = before("generated/buffers", forgets_buffers)

#: Ranks then reduce groups of other sizes than each other.
RAISES = {"skips_unused"}
#: What needs gradients needs the same once it is sharded.
ALSO_KILLED_BY = {"trains_what_is_frozen": ("entry/needs-gradients",)}
