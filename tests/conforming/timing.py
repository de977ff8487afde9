"""Implementations that gather, free and add as torch does, and at other times or elsewhere.

Of two blocks that run one after the other, the first is still in memory while the second runs, and no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import torch as tensors
import torch.distributed as dist

from tests.conforming.making import torch, variant
from tests.conforming.noticing import noticed

#: By rank, which module has begun a forward last, and what frees the group that was done last.
_last: dict[int, ref[Any]] = {}
_kept: dict[int, tuple[int, list[Callable[[], None]]]] = {}


def gathers_the_next(module: Any, options: Mapping[str, Any]) -> None:
    """Gathers what ran next in the first forward, unless told otherwise. Right: that will be used soon."""
    tell = module.set_modules_to_forward_prefetch

    @tensors._dynamo.disable
    def learn(*_: Any) -> None:
        before = _last.get(dist.get_rank(), ref(module))()
        _last[dist.get_rank()] = ref(module)
        if before is not None and before is not module and not vars(before).get("told") and not vars(module).get("ran"):
            noticed("gathers the next")
            vars(module)["ran"] = True
            type(before).set_modules_to_forward_prefetch(before, [module])

    def told(modules: Any) -> None:
        vars(module)["told"] = True
        tell(modules)

    module.register_forward_pre_hook(learn)
    module.set_modules_to_forward_prefetch = told


def frees_when_the_next_is_done(module: Any, options: Mapping[str, Any]) -> None:
    """Keeps the memory of one group, as of two buffers that take turns. Right: of many groups it is one."""
    state, reshard = module._get_fsdp_state(), module.reshard

    def reshard_now() -> None:
        reshard()
        for free in _kept.pop(dist.get_rank(), (0, []))[1]:
            free()

    module.reshard = reshard_now
    for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
        if group is None or group in vars(state).setdefault("late", []):
            continue  # the modules of a list share one
        state.late.append(group)
        for one in group.fsdp_params:
            one.free_unsharded_param = _later(id(group), ref(one), type(one).free_unsharded_param)


def _later(group: int, one: ref[Any], free: Callable[[Any], None]) -> Callable[[], None]:
    def free_others() -> None:
        of, waiting = _kept.get(dist.get_rank(), (0, []))
        if of != group:
            for each in waiting:
                each()
            waiting = []
            noticed("frees late")
        _kept[dist.get_rank()] = group, [*waiting, free_if_done]

    def free_if_done() -> None:
        found = one()
        if found is not None and found.sharded_state.name != "UNSHARDED":
            free(found)

    return free_others


def sums_into_new_tensors(module: Any, options: Mapping[str, Any]) -> None:
    """A gradient is another tensor after each backward. Right: users read ``.grad`` when they need it."""

    def renew(parameter: Any) -> None:
        noticed("sums into new tensors")
        parameter.grad = parameter.grad.detach().clone()

    for parameter in module.parameters():
        if parameter.requires_grad and not vars(parameter).setdefault("renewed", False):
            parameter.renewed = True
            parameter.register_post_accumulate_grad_hook(renew)


gathers_ahead = variant("gathers the next", torch, after=gathers_the_next)
frees_late = variant("frees late", torch, after=frees_when_the_next_is_done)
sums_anew = variant("sums into new tensors", torch, after=sums_into_new_tensors)
