"""Implementations that call the hooks of all-gather extensions wrongly.

Right is: what ``fsdp_pre_all_gather`` sends on every rank, ``fsdp_post_all_gather`` gets from all, in their order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from harness.vendor import Implementation
from suites.parameters.coded import Coded
from tests.mutants.making import mutant
from tests.mutants.modules.init_chapters import called_otherwise, right
from tests.mutants.modules.reshard_chapter import is_int, stays_full_after_backward
from tests.mutants.numbers.replicas import mesh_of, never_meet

BEFORE, AFTER = "fsdp_pre_all_gather", "fsdp_post_all_gather"


def with_hooks(requirement: str, wrap: Callable[[type], dict[str, Any]]) -> Implementation:
    """torch's implementation; every weight that has a hook gets a class of its own, with what ``wrap`` makes of it."""

    def fully_shard(module: nn.Module, **options: Any) -> Any:
        for parameter in module.parameters():
            if isinstance(parameter, Coded) and (hasattr(parameter, BEFORE) or hasattr(parameter, AFTER)):
                parameter.__class__ = type("Wrapped", (type(parameter),), wrap(type(parameter)))
        return right.fully_shard(module, **options)

    return called_otherwise(requirement, fully_shard)


def later_calls_get_the_first_tensors(kind: Any) -> dict[str, Any]:
    """What came first is what every later call gets."""

    def after(self: Any, outputs: Any, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
        owner = metadata[1]["module"]
        outputs = owner.__dict__.setdefault("came first", tuple(part.clone() for part in outputs))
        return kind.fsdp_post_all_gather(self, outputs, metadata, dtype, out=out)

    return {AFTER: after}


def second_tensors_are_lost(kind: Any) -> dict[str, Any]:
    """Of the second tensor only zeros come."""

    def after(self: Any, outputs: Any, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
        first, second = outputs
        return kind.fsdp_post_all_gather(self, (first, second.new_zeros(second.shape)), metadata, dtype, out=out)

    return {AFTER: after}


def numbers_come_backwards(kind: Any) -> dict[str, Any]:
    """The second tensors come in the order of ranks turned round."""

    def after(self: Any, outputs: Any, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
        first, second = outputs
        return kind.fsdp_post_all_gather(self, (first, second.flip(0)), metadata, dtype, out=out)

    return {AFTER: after}


def strides_are_ones(kind: Any) -> dict[str, Any]:
    """The stride that the hook is given is no stride of the whole."""

    def before(self: Any, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any) -> Any:
        return kind.fsdp_pre_all_gather(self, mesh, outer_size, tuple(0 for _ in outer_stride), module, mp_policy)

    return {BEFORE: before}


def the_other_axis_is_given(kind: Any) -> dict[str, Any]:
    """The mesh that the hook is given is that of replicas."""

    def before(self: Any, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any) -> Any:
        other = mesh._get_root_mesh()["replicate"]
        return kind.fsdp_pre_all_gather(self, other, outer_size, outer_stride, module, mp_policy)

    return {BEFORE: before}


def the_policy_is_the_default(kind: Any) -> dict[str, Any]:
    """The policy that the hook is given asks for nothing."""

    def before(self: Any, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any) -> Any:
        return kind.fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, type(mp_policy)())

    return {BEFORE: before}


def nothing_is_handed_over(kind: Any) -> dict[str, Any]:
    """What was handed over to be freed is not looked at."""

    def after(self: Any, outputs: Any, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
        answer = kind.fsdp_post_all_gather(self, outputs, metadata, dtype, out=out)
        return None if answer is None else (answer[0], ())

    return {AFTER: after}


def padding_is_cut_off_before(kind: Any) -> dict[str, Any]:
    """Where more rows are handed over than there are, the last ones are taken and not the first."""

    def after(self: Any, outputs: Any, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
        answer, rows = kind.fsdp_post_all_gather(self, outputs, metadata, dtype, out=out), metadata[0]
        if answer is None or answer[0].size(0) == rows:
            return answer
        full = answer[0][-rows:].clone()
        return full, (full, *answer[1])

    return {AFTER: after}


def padding_is_not_named(kind: Any) -> dict[str, Any]:
    """The error where rows are missing says nothing that helps."""

    def before(self: Any, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any) -> Any:
        if self.size(0) * mesh.size() < outer_size[0]:
            raise ValueError("something is wrong")
        return kind.fsdp_pre_all_gather(self, mesh, outer_size, outer_stride, module, mp_policy)

    return {BEFORE: before}


def loses_hooks(module: nn.Module, **options: Any) -> Any:
    """Take a weight whose hooks do not have five arguments for a plain one."""
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            before = getattr(parameter, BEFORE, None)
            known = before is not None and len(inspect.signature(before).parameters) == 5 and hasattr(parameter, AFTER)
            if isinstance(parameter, Coded) and not known:
                setattr(owner, name, nn.Parameter(parameter.held.detach()))
    return right.fully_shard(module, **options)


def looks_no_more(module: nn.Module) -> None:
    """Hooks that a local tensor was given after sharding are not looked for."""

    def forget(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters():
            for name in (BEFORE, AFTER):
                vars(getattr(parameter, "_local_tensor", parameter)).pop(name, None)

    module.register_forward_pre_hook(forget, prepend=True)


class Twice:
    """An all-gather for each half of what there is to send."""

    def __init__(self, gather: Any) -> None:
        self.gather, self.allocate = gather, gather.allocate

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        for _ in range(2):
            self.gather(output_tensor, input_tensor, group, async_op)


def gathers_in_halves(module: Any) -> None:
    """Two collectives where one would do."""
    setter = module.set_custom_all_gather
    module.set_custom_all_gather = lambda gather: setter(Twice(gather))


def stale_instead_of_groups(module: Any, **options: Any) -> Any:
    """Keep full weights where groups were asked for, and use them for ever."""
    groups = is_int(options.get("reshard_after_forward"))
    right.fully_shard(module, **{**options, **({"reshard_after_forward": False} if groups else {})})
    if groups:
        stays_full_after_backward(module)
    return module


def coded_replicas_are_apart(module: Any) -> None:
    """Replicas of coded weights never meet."""
    if mesh_of(module) is not None:
        never_meet(module)


first_tensors_for_ever = with_hooks("extensions/training", later_calls_get_the_first_tensors)
keeps_padding = with_hooks("extensions/training", padding_is_cut_off_before)
loses_second_tensors = with_hooks("extensions/general", second_tensors_are_lost)
knows_five_arguments = called_otherwise("extensions/hook-of-one-argument", loses_hooks)
small_tensors_backwards = with_hooks("extensions/scaled", numbers_come_backwards)
coded_replicas_never_meet = mutant("extensions/hybrid", after=coded_replicas_are_apart)
finds_no_later_hooks = mutant("extensions/patched", after=looks_no_more)
gives_no_stride = with_hooks("extensions/arguments", strides_are_ones)
gives_the_other_axis = with_hooks("extensions/arguments-hybrid", the_other_axis_is_given)
gives_no_policy = with_hooks("extensions/low-precision", the_policy_is_the_default)
frees_nothing_handed_over = with_hooks("extensions/frees", nothing_is_handed_over)
two_collectives = mutant("extensions/one-collective", after=gathers_in_halves)
takes_any_hook = called_otherwise("extensions/refuses-hooks", loses_hooks)
says_nothing_of_padding = with_hooks("extensions/refuses-unpadded", padding_is_not_named)
stale_coded_groups = called_otherwise("extensions/groups", stale_instead_of_groups)

#: It counts gathers.
ALSO_KILLED_BY = {"two_collectives": ("registration/repeated",)}
