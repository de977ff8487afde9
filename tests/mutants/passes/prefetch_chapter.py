"""Implementations that gather too late, in another order, or the wrong modules; results are right but for one.

What needs streams to show is in ``virtual_time.py``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.autograd import Variable
from torch.distributed.tensor import DTensor

from harness.vendor.torch_fsdp2 import _groups, _state
from tests.mutants.hooking import instead
from tests.mutants.making import mutant, right
from tests.mutants.passes.communication import gathers_when_run_again, without

HOOKING = "register_post_accumulate_grad_hook"


def sharded_below(module: Any) -> list[Any]:
    """The sharded modules below, in the order in which they were made."""
    return [each for each in module.modules() if isinstance(each, right.module_class or object) and each is not module]


def gathers_the_last_first(module: Any) -> None:
    """In forward, the root gathers all below it, the last first."""
    if below := sharded_below(module):
        module.set_modules_to_forward_prefetch(below[::-1])


def gathers_the_first_first(module: Any) -> None:
    """In backward, the root gathers all below it as they ran."""
    if below := sharded_below(module):
        module.set_modules_to_backward_prefetch(below)


def reduces_at_the_end(module: Any) -> None:
    """Reductions begin when backward is over."""
    for group in right.fully_shard.state(module)._fsdp_param_groups:  # type: ignore[union-attr]
        group.post_backward = functools.partial(_only_at_the_end, group.post_backward)


def _only_at_the_end(post_backward: Callable[..., None], *args: Any) -> None:
    if sys._getframe(1).f_code.co_name == "_root_post_backward_final_callback":
        post_backward(*args)


def calls_hooks_at_the_end(module: Any) -> None:
    """Hooks after accumulation are called when backward is over."""
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            setattr(parameter, HOOKING, functools.partial(_hook_at_the_end, parameter))


def _hook_at_the_end(parameter: Any, hook: Callable[[Any], None]) -> Any:
    def later(_: Any) -> None:
        Variable._execution_engine.queue_callback(lambda: hook(parameter))  # type: ignore[no-untyped-call]

    return getattr(type(parameter), HOOKING)(parameter, later)


def stops_at_layers(module: Any) -> None:
    """Before the first module of one without parameters, nothing is gathered ahead."""
    if not _groups(_state(module)):
        first = sharded_below(module)[0]
        first.set_modules_to_backward_prefetch([first])


def starts_from_roots(module: Any) -> None:
    """A root without parameters gathers ahead what ran last."""
    if not _groups(_state(module)):
        module.set_modules_to_backward_prefetch(sharded_below(module)[-1:])


def listed_backwards(module: Any, listed: list[Any]) -> None:
    """The list, from its end."""
    type(module).set_modules_to_backward_prefetch(module, listed[::-1])


def keeps_what_is_listed(module: Any, listed: list[Any]) -> None:
    """What has been gathered ahead stays, whatever the optimizer does to it."""
    type(module).set_modules_to_backward_prefetch(module, listed)
    for each in listed:
        each.set_reshard_after_backward(False, recurse=False)


class Done:
    """A handle that has nothing to wait for."""

    def wait(self) -> None:
        """Return."""


def gathers_for_nothing(module: nn.Module, async_op: bool = False) -> Done:
    """Gathers, and frees at once."""
    type(module).unshard(module)  # type: ignore[operator]
    type(module).reshard(module)  # type: ignore[operator]
    return Done()


def gathers_listed_once_computed(module: Any, setter: Callable[[list[Any]], None], listed: list[Any]) -> None:
    """In backward, what is listed is gathered between a module's computation and its reduction."""
    setter([module])
    module.register_full_backward_hook(lambda *_: _gather(listed))


def _gather(listed: list[Any]) -> None:
    for each in listed:
        each.unshard()


gathers_last_first = mutant("prefetch/forward-order", gathers_the_last_first)
gathers_first_first = mutant("prefetch/backward-order", gathers_the_first_first)
#: In backward, each gathers itself and no other.
gathers_late = mutant("prefetch/backward-default", lambda module: module.set_modules_to_backward_prefetch([module]))
gathers_late_between_layers = mutant("prefetch/backward-nested", stops_at_layers)
gathers_for_the_root = mutant("prefetch/backward-unused", starts_from_roots)
gathers_again = mutant("prefetch/recomputed", gathers_when_run_again)
reduces_late = mutant("prefetch/reduces-meanwhile", reduces_at_the_end)
hands_out_late = mutant("prefetch/hands-out-meanwhile", calls_hooks_at_the_end)
ignores_lists = without("prefetch/forward-lists", "set_modules_to_forward_prefetch")
reverses_lists = without("prefetch/backward-lists", "set_modules_to_backward_prefetch", listed_backwards)
keeps_lists = without("prefetch/of-no-use", "set_modules_to_backward_prefetch", keeps_what_is_listed)
unshards_for_nothing = without("prefetch/by-hand", "unshard", gathers_for_nothing)
takes_any_module = without("prefetch/refuses", "set_modules_to_backward_prefetch")
gathers_once_computed = mutant(
    "overlap/issued-ahead", instead("set_modules_to_backward_prefetch", gathers_listed_once_computed)
)

ALSO_KILLED_BY = {
    "reduces_late": ("generated/",),  # what is no more unsharded when backward is over is never reduced
    "unshards_for_nothing": ("scripts/gather",),  # explicitly
}
