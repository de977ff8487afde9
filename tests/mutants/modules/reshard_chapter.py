"""Implementations that reshard when they should not, or do not when they should.

Right is: True shards all after forward, False nothing, unset all but the root, k over groups of k; backward shards all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from reference_models.subject import implementation as reference
from tests.mutants.hooking import instead
from tests.mutants.making import called_otherwise, given, mutant, right
from tests.mutants.numbers.gathers import own_shards

SETTING = "reshard_after_forward"


def reads(change: Callable[[Any, int], Any]) -> Callable[..., Any]:
    """A ``fully_shard`` that takes another setting than it is given, which may depend on the number of shards."""

    def fully_shard(module: Any, **options: Any) -> Any:
        setting = change(options.get(SETTING), options["mesh"].size(-1))
        return right.fully_shard(module, **{**options, SETTING: setting})

    return fully_shard


def is_int(setting: Any) -> bool:
    """Whether a setting is a size of groups."""
    return isinstance(setting, int) and not isinstance(setting, bool)


def then(change: Callable[[Any], None], where: Callable[[Any], bool]) -> Callable[..., Any]:
    """A ``fully_shard`` that changes modules whose setting is such."""

    def fully_shard(module: Any, **options: Any) -> Any:
        right.fully_shard(module, **options)
        if where(options.get(SETTING)):
            change(module)
        return module

    return fully_shard


def unshards_without_gradients(module: Any) -> None:
    """A forward without gradients has no backward that would reshard; and so it never does."""
    module.register_forward_hook(lambda module, *_: None if torch.is_grad_enabled() else module.unshard())


def reshards_over_all_without_gradients(module: Any) -> None:
    """A forward without gradients has no backward that would gather among few; and so all ranks share."""
    module.register_forward_hook(lambda module, *_: None if torch.is_grad_enabled() else module.reshard())


def always_recurses(module: Any) -> None:
    """Set all, also when the root alone was meant."""
    setter = module.set_reshard_after_forward
    module.set_reshard_after_forward = lambda value, recurse=True: setter(value, recurse=True)


def stays_full_after_backward(module: Any) -> None:
    """Keep full parameters after backward, and so use them, stale, in the next forward."""
    module.set_reshard_after_backward(False)


def cannot_stay_full(module: Any) -> None:
    """Ignore the wish to keep full parameters after backward."""
    module.set_reshard_after_backward = lambda *_, **__: None


def does_not_reshard_by_hand(module: Any) -> None:
    """``reshard`` does nothing."""
    module.reshard = lambda: None


def unshards_children(module: Any) -> None:
    """``unshard`` of a module is that of all below, too."""
    unshard, below = module.unshard, [each for each in module.modules() if hasattr(each, "unshard")]

    def unshard_all(async_op: bool = False) -> Any:
        for each in below[1:]:
            each.unshard()
        return unshard(async_op)

    module.unshard = unshard_all


def drops_empty_gradients(module: Any) -> None:
    """A rank without rows of a parameter has no gradient of it."""

    def drop(parameter: Any) -> None:
        if isinstance(parameter, DTensor) and not parameter.to_local().numel():
            parameter.grad = None

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(drop)


def keeps_full_memory(module: Any) -> None:
    """Register sharded parameters, and keep the full ones all the same."""
    full: dict[Any, int] = {}

    def remember(module: Any, _: Any) -> None:
        full.update({p: p.untyped_storage().nbytes() for p in module.parameters() if not isinstance(p, DTensor)})

    def keep(*_: Any) -> None:
        for parameter, size in full.items():
            parameter.untyped_storage().resize_(size)

    module.register_forward_pre_hook(remember)
    module.register_forward_hook(keep)


def factor_or_true(setting: Any, ranks: int) -> Any:
    """Read a size that does not fit as True."""
    fits = not is_int(setting) or (setting > 0 and ranks % setting == 0)
    return setting if fits else True


def trains_all(module: Any) -> None:
    """What a forward leaves needs a gradient, frozen or not."""
    module.register_forward_hook(lambda module, *_: module.requires_grad_() and None)


def keeping(setter: Callable[..., None]) -> Callable[[Any, Any], None]:
    """After a module is sharded: another setter of whether freed memory is kept."""
    return lambda module, options: instead("set_keep_unsharded_storage", setter)(module)


never_reshards_after_forward = called_otherwise("reshard/true", reads(lambda setting, _: False))
always_reshards_after_forward = called_otherwise("reshard/false", reads(lambda setting, _: True))
reshards_the_root = called_otherwise("reshard/default", reads(lambda setting, _: True if setting is None else setting))
without_gradients_stays_full = mutant("reshard/without-gradients", unshards_without_gradients)
sets_all_later = mutant("reshard/set-later", always_recurses)
reads_groups_as_true = called_otherwise(
    "reshard/to-group", reads(lambda setting, _: True if is_int(setting) else setting)
)
groups_need_gradients = called_otherwise(
    "reshard/to-group-without-gradients", then(reshards_over_all_without_gradients, is_int)
)
reads_one_as_true = called_otherwise(
    "reshard/to-one-or-all", reads(lambda setting, _: True if is_int(setting) and setting == 1 else setting)
)
stays_full = mutant("reshard/after-backward", stays_full_after_backward)
groups_train = called_otherwise("reshard/to-group-frozen", then(trains_all, is_int))
groups_stay_full = called_otherwise("reshard/to-group-after-backward", then(stays_full_after_backward, is_int))
cannot_be_kept = mutant("reshard/kept-after-backward", cannot_stay_full)
no_empty_gradients = mutant("reshard/gradients", drops_empty_gradients)
no_reshard_by_hand = mutant("reshard/by-hand", does_not_reshard_by_hand)
no_way_back = mutant("reshard/undoes-unshard", does_not_reshard_by_hand)
unshards_all_below = mutant("reshard/unshard", unshards_children)
runs_on_its_own_shard = mutant("reshard/full-in-forward", own_shards)
frees_what_is_kept = given("reshard/in-place", keeping(lambda module, setter, keep, **options: None), of=reference)
keeps_for_good = given(
    "reshard/in-place", keeping(lambda module, setter, keep, **options: setter(True, **options)), of=reference
)
keeps_all = given("reshard/in-place", keeping(lambda module, setter, keep, **options: setter(keep)), of=reference)
frees_nothing = mutant("reshard/frees-memory", keeps_full_memory)
stale_when_not_resharding = called_otherwise(
    "reshard/same-results", then(stays_full_after_backward, lambda setting: setting is False)
)
stale_in_groups = called_otherwise("reshard/to-group-same-results", then(stays_full_after_backward, is_int))
#: Gradients are added up, and not averaged.
sums_in_groups = called_otherwise(
    "parity/to-group", then(lambda module: module.set_gradient_divide_factor(1.0), is_int)
)
takes_any_size = called_otherwise("reshard/refuses-sizes", reads(factor_or_true))
takes_any_type = called_otherwise(
    "reshard/refuses-types", reads(lambda setting, _: bool(setting) if isinstance(setting, (str, float)) else setting)
)
