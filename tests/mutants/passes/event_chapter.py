"""Implementations whose groups live in another order: they say, use or free something too early or too late.

Right is, for each group: gather, wait, use, free; gather, wait, use, free, reduce-scatter, wait, all-reduce, wait.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.collective_trace.torch_names import all_gather, reduce_scatter
from tests.mutants import END_TO_END, name_of
from tests.mutants.hooking import instead
from tests.mutants.making import Gather, given, modules_of, mutant, reduced, reducing, right
from tests.mutants.modules.reshard_chapter import is_int, keeps_full_memory, then
from tests.mutants.passes.communication import without

_here = threading.local()


class WaitsLate(Gather):
    """Waits for each gather when the next one begins, and hands out what may not have come yet."""

    def __init__(self) -> None:
        self.work: Any = None

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        if self.work is not None:
            self.work.wait()
        self.work = all_gather(output, input, group=group, async_op=True)


def frees_between_modules(module: Any, options: dict[str, Any]) -> None:
    """The modules of a list are gathered for one by one."""
    if isinstance(module, nn.Module):
        return
    for each in module[:-1]:
        each.register_forward_hook(lambda each, *_: each.reshard())
    for each in module[1:]:
        each.register_forward_pre_hook(lambda each, _: each.unshard() and None)


def frees_when_the_next_is_done(module: Any, options: dict[str, Any]) -> None:
    """A module is resharded after the module that ends after it."""
    if options.get("reshard_after_forward") is False or not isinstance(module, nn.Module):
        return
    module.set_reshard_after_forward(False, recurse=False)
    module.register_forward_hook(_free_the_last)


def _free_the_last(module: Any, *_: Any) -> None:
    last, _here.last = getattr(_here, "last", None), module
    if last is not None:
        last.reshard()


def all_reduces_first(module: Any, options: dict[str, Any]) -> None:
    """Where there are replicas, averages whole gradients among them before it scatters them."""

    def reduce(output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        dist.all_reduce(input, op=dist.ReduceOp.AVG, group=options["mesh"].get_group(0))
        reduced(output, input, group, op)

    for each in modules_of(module) if options["mesh"].ndim == 2 else ():
        reducing(reduce)(each)


def quiet_stays_unsharded(module: Any, right_setter: Any, syncs: bool, **options: Any) -> None:
    """Without reduction there is no resharding either."""
    right_setter(syncs, **options)
    module.set_reshard_after_backward(syncs, **options)


def gathers_for_every_run(module: Any) -> None:
    """Frees and gathers what runs again in backward, though it is there."""

    def again(inner: Any, _: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            module.reshard()
            module.unshard()

    layers = [each for each in module.modules() if isinstance(each, nn.Linear) and each is not module]
    if layers and hasattr(module, "residual"):
        layers[-1].register_forward_pre_hook(again)


waits_late = mutant("events/waits", gather=WaitsLate)
gathers_for_each_of_a_list = given("events/once", frees_between_modules)
frees_late = given("events/freed", frees_when_the_next_is_done)
#: Leaves its reductions to themselves.
leaves_reductions = mutant(
    "events/reduced",
    reducing(lambda output, input, group, op: reduce_scatter(output, input, group=group, op=op, async_op=True)),
)
stays_unsharded_when_quiet = mutant("events/accumulation", instead("set_requires_gradient_sync", quiet_stays_unsharded))
averages_before_scattering = given("events/replicas", all_reduces_first)
all_reduces_unasked = without("events/replicas-quiet", "set_requires_all_reduce")
gathers_lists_from_their_end = mutant(
    "events/ahead",
    after=instead("set_modules_to_forward_prefetch", lambda module, setter, listed: setter(listed[::-1])),
)
gathers_for_runs_in_backward = mutant("events/recomputed", gathers_for_every_run)
keeps_what_it_keeps_in_part = replace(
    right, name=name_of("events/to-group"), fully_shard=then(keeps_full_memory, is_int)
)

#: What is read too early, or left, is wrong in numbers; and scripts look at what is registered after every act.
ALSO_KILLED_BY = {
    **dict.fromkeys(("waits_late", "leaves_reductions"), END_TO_END),
    "all_reduces_unasked": ("scripts/hsdp",),
    "stays_unsharded_when_quiet": ("scripts/accumulate",),
    "frees_late": ("scripts/",),
}
