"""Implementations that do each single thing right, and go wrong where one follows another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.hooking import Change, before_forward, in_forward, instead, is_root
from tests.mutants.making import defect, given, modules_of, mutant, right


def whole(module: nn.Module) -> dict[str, Any]:
    """The parameters that are registered unsharded, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if not isinstance(parameter, DTensor)}


def values(named: dict[str, Any]) -> dict[str, Tensor]:
    """Copies of their values."""
    return {name: parameter.detach().clone() for name, parameter in named.items()}


@torch.no_grad()
def write(named: dict[str, Any], values: dict[str, Tensor]) -> None:
    """Write those values that there are."""
    for name, value in values.items():
        if name in named:
            named[name].copy_(value)


def sharded_modules(module: nn.Module) -> list[Any]:
    """All modules of the tree that were sharded."""
    return [each for each in module.modules() if hasattr(each, "unshard")]


def lose_what_waits(module: nn.Module) -> None:
    """Drop the gradients that have not been reduced yet."""
    memory = not any(parameter.is_meta for parameter in module.parameters())
    for each in sharded_modules(module) if memory else []:
        type(each).unshard(each)
        for parameter in whole(each).values():
            parameter.grad = None
        type(each).reshard(each)


# Forwards and backwards.


def only_if(fits: Callable[[dict[str, Any], int], bool]) -> Change:
    """A change to each module: a forward's gradient counts only if, when backward comes to it, ``fits(seen, number)``.

    ``seen`` has the number of the ``last`` forward with gradients, and whether one without has ``looked`` since.
    """

    def apply(module: nn.Module) -> None:
        seen: dict[str, Any] = {"last": 0, "looked": False}

        def note(module: Any, args: Any, output: Any) -> None:
            seen["looked"] = not torch.is_grad_enabled()
            if isinstance(output, Tensor) and output.requires_grad:
                seen["last"] += 1
                number = seen["last"]
                output.register_hook(lambda gradient: gradient if fits(seen, number) else gradient * 0)

        module.register_forward_hook(note)

    return apply


only_the_last = only_if(lambda seen, number: number == seen["last"])


def checkpoint_the_last(module: nn.Module, **options: Any) -> nn.Module:
    """Run again in backward what ran last, and nothing for what ran before."""
    right.checkpoint(module, **options)
    only_the_last(module)
    return module


# Explicit unsharding.


def remembers_what_was_unsharded(module: Any) -> None:
    """The next forward uses what was unsharded explicitly, even if it was freed and has changed since."""
    unshard, kept = module.unshard, {}

    def remember(async_op: bool = False) -> Any:
        handle = unshard(async_op)
        kept.update({} if async_op else values(whole(module)))
        return handle

    def put_back(module: Any, _: Any) -> None:
        write(whole(module), kept)
        kept.clear()

    module.unshard = remember
    module.register_forward_pre_hook(put_back)


class LateHandle:
    """Gathers when it is waited for, whatever has been done since."""

    def __init__(self, gather: Callable[[], Any]) -> None:
        self.wait = gather


def gathers_when_waited_for(module: Any, unshard: Any, async_op: bool = False) -> Any:
    """A gather that is to be waited for is begun by the wait."""
    return LateHandle(unshard) if async_op else unshard()


def never_frees_again(module: Any, setter: Any, value: bool, **options: Any) -> None:
    """What is kept after backward is kept from then on."""
    if not value:
        setter(value, **options)


def reshard_loses_what_waits(module: Any, reshard: Any) -> None:
    """To reshard gives up gradients that have not been reduced."""
    lose_what_waits(module)
    reshard()


# State.


def loads_beside_what_is_whole(module: Any, load: Any, *args: Any, **options: Any) -> Any:
    """What is unsharded when state is loaded stays so, with its old values."""
    before = values(whole(module))
    result = load(*args, **options)
    for each in sharded_modules(module) if before else []:
        each.unshard()
    write(whole(module), before)
    return result


def loads_into_what_is_whole(module: Any, load: Any, *args: Any, **options: Any) -> Any:
    """Of what is unsharded when state is loaded, the sharded parameters do not get it."""
    names = set(whole(module))
    for each in sharded_modules(module):
        each.reshard()
    before = {name: p.detach().clone() for name, p in module.named_parameters() if name in names}
    result = load(*args, **options)
    write(dict(module.named_parameters()), before)
    return result


def loads_anew(module: Any, load: Any, state_dict: Any, **options: Any) -> Any:
    """Every load makes new parameters, of which no optimizer knows."""
    fresh = {name: value.detach().clone() for name, value in state_dict.items()}
    return load(fresh, **{**options, "assign": True})


def saving_ends_the_policy(module: Any) -> None:
    """After state was asked for, outputs have the dtype of parameters."""
    saved: list[bool] = []
    module.register_state_dict_pre_hook(lambda *_: saved.append(True))
    if is_root(module):
        module.register_forward_hook(
            lambda module, args, output: tree_map_only(Tensor, Tensor.float, output) if saved else output
        )


def gathers_once(module: Any, **options: Any) -> Any:
    """What begins on meta is gathered in its first forward, and never again."""
    modules = modules_of(module)
    from_meta = any(parameter.is_meta for each in modules for parameter in each.parameters())
    right.fully_shard(module, **options)
    if from_meta:
        modules[0].set_reshard_after_forward(False, recurse=False)
        modules[0].set_reshard_after_backward(False, recurse=False)
    return module


def loads_wrongly_when_offloaded(module: Any, **options: Any) -> Any:
    """With CPU offload, loading misses what is unsharded."""
    right.fully_shard(module, **options)
    for each in modules_of(module) if "offload_policy" in options else []:
        instead("load_state_dict", loads_into_what_is_whole)(each)
    return module


# Freezing.


def thawing_brings_gradients_back(module: Any) -> None:
    """The gradient that a parameter had when it was frozen is there again when it trains again."""
    stash: dict[Any, Tensor] = {}

    def look(module: Any, _: Any) -> None:
        for parameter in module.parameters():
            if isinstance(parameter, DTensor) and not parameter.requires_grad and parameter.grad is not None:
                stash[parameter] = parameter.grad.clone()
            elif parameter in stash and parameter.requires_grad:
                parameter.grad = stash.pop(parameter)

    module.register_forward_pre_hook(look, prepend=True)


def reduces_coarsely_once_thawed(module: Any, _: Any) -> None:
    """Gradients of what did not train in the first forward are of eight bits."""
    late: set[Any] = set()

    def note(module: Any, _: Any) -> None:
        late.update(parameter for parameter in module.parameters() if not parameter.requires_grad)

    def round_off(parameter: Any) -> None:
        if parameter in late:
            parameter.grad = parameter.grad.to(torch.float8_e4m3fn).to(parameter.dtype)

    for each in modules_of(module):
        handle = each.register_forward_pre_hook(note, prepend=True)
        each.register_forward_hook(lambda *_, handle=handle: handle.remove())
        for parameter in each.parameters():
            parameter.register_post_accumulate_grad_hook(round_off)


def drops_what_waits_for_replicas(module: Any, setter: Any, value: bool, **options: Any) -> None:
    """To keep sums among shards gives up the gradients of passes that were not reduced at all."""
    if not value:
        lose_what_waits(module)
    setter(value, **options)


@torch.no_grad()
def restore_what_is_frozen(module: Any) -> None:
    """What trains no more keeps the values that it had in the first forward since, whatever is written into it."""
    noted = vars(module).setdefault("noted", {})
    for name, parameter in module.named_parameters():
        if parameter.requires_grad or not isinstance(parameter, DTensor):
            noted.pop(name, None)
        elif name in noted:
            parameter.to_local().copy_(noted[name])
        else:
            noted[name] = parameter.to_local().clone()


def unshards_after_a_reset(module: Any, reset: Any) -> None:
    """What was whole when a pass failed is whole again after the reset."""
    before = [each for each in sharded_modules(module) if whole(each)]
    reset()
    for each in before:
        each.unshard()


def divides_by_ranks_after_a_reset(module: Any, reset: Any) -> None:
    """What gradients are divided by is no longer what was asked for."""
    reset()
    for each in sharded_modules(module):
        each.set_gradient_divide_factor(float(dist.get_world_size()))


goes_back_through_the_last_alone = mutant("scripts/train", only_the_last)
looking_ends_a_forward = mutant("scripts/train", only_if(lambda seen, _: not seen["looked"]))
runs_the_last_again = replace(right, name=name_of("scripts/recomputed"), checkpoint=checkpoint_the_last)
stale_by_hand = mutant("scripts/gather", remembers_what_was_unsharded)
gathers_late = mutant("scripts/gather", instead("unshard", gathers_when_waited_for))
keeps_for_ever = mutant("scripts/gather", instead("set_reshard_after_backward", never_frees_again))
frozen_for_good = mutant("scripts/edits", before_forward(restore_what_is_frozen))
stays_whole = mutant("scripts/reset", instead("reset_iter_state", unshards_after_a_reset))
forgets_by_reset = mutant("scripts/any-order", instead("reset_iter_state", divides_by_ranks_after_a_reset))
loses_by_reshard = mutant("scripts/mixed", instead("reshard", reshard_loses_what_waits))
stale_after_load = mutant("scripts/state", instead("load_state_dict", loads_beside_what_is_whole))
parameters_anew = mutant("scripts/state", instead("load_state_dict", loads_anew))
#: To ask for state gives up gradients that have not been reduced.
loses_by_saving = mutant(
    "scripts/accumulate", lambda module: module.register_state_dict_pre_hook(lambda module, *_: lose_what_waits(module))
)
policy_until_saved = mutant("scripts/precision", saving_ends_the_policy)
gathers_once_from_meta = replace(right, name=name_of("scripts/meta"), fully_shard=gathers_once)
loads_past_offloaded = replace(right, name=name_of("scripts/offload"), fully_shard=loads_wrongly_when_offloaded)


@defect("scripts/freeze", in_forward)
def freezes_never(module: Any) -> None:
    """What trains in the first forward trains ever after."""
    module.requires_grad_ = lambda requires_grad=True: module


old_gradients = mutant("scripts/freeze", thawing_brings_gradients_back)
coarse_once_thawed = given("scripts/thawed-precision", reduces_coarsely_once_thawed, of=reference)
loses_before_replicas = mutant("scripts/hsdp", instead("set_requires_all_reduce", drops_what_waits_for_replicas))
