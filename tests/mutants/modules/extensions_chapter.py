"""Implementations that call the hooks of all-gather extensions wrongly.

Right is: what ``fsdp_pre_all_gather`` sends on every rank, ``fsdp_post_all_gather`` gets from all, in their order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.vendor import Implementation
from suites.parameters.coded import Coded
from tests.mutants.hooking import before_forward
from tests.mutants.making import called_otherwise, defect, mutant, right
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


def told(requirement: str, change: Callable[..., tuple[Any, ...]]) -> Implementation:
    """The hook before a gather is given what ``change(weight, mesh, size, stride, module, policy)`` makes of it."""

    def wrap(kind: Any) -> dict[str, Any]:
        def before(self: Any, mesh: Any, outer_size: Any, outer_stride: Any, module: Any, mp_policy: Any) -> Any:
            return kind.fsdp_pre_all_gather(self, *change(self, mesh, outer_size, outer_stride, module, mp_policy))

        return {BEFORE: before}

    return with_hooks(requirement, wrap)


def received(requirement: str, change: Callable[[Any, Any], Any]) -> Implementation:
    """The hook after a gather is given ``change(outputs, metadata)`` for what was gathered."""

    def wrap(kind: Any) -> dict[str, Any]:
        def after(self: Any, outputs: Any, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
            return kind.fsdp_post_all_gather(self, change(outputs, metadata), metadata, dtype, out=out)

        return {AFTER: after}

    return with_hooks(requirement, wrap)


def answered(requirement: str, change: Callable[[Any, Any], Any]) -> Implementation:
    """The first answer of the hook after a gather, a pair, becomes ``change(answer, metadata)``."""

    def wrap(kind: Any) -> dict[str, Any]:
        def after(self: Any, outputs: Any, metadata: Any, dtype: Any, *, out: Any = None) -> Any:
            answer = kind.fsdp_post_all_gather(self, outputs, metadata, dtype, out=out)
            return answer and change(answer, metadata)

        return {AFTER: after}

    return with_hooks(requirement, wrap)


def first_outputs(outputs: Any, metadata: Any) -> Any:
    """What came first is what every later call gets."""
    return vars(metadata[1]["module"]).setdefault("came first", tuple(part.clone() for part in outputs))


def last_rows(answer: Any, metadata: Any) -> Any:
    """Where more rows are handed over than there are, the last ones are taken and not the first."""
    if answer[0].size(0) == metadata[0]:
        return answer
    full = answer[0][-metadata[0] :].clone()
    return full, (full, *answer[1])


def without_words(weight: Any, mesh: Any, size: Any, *rest: Any) -> tuple[Any, ...]:
    """The error where rows are missing says nothing that helps."""
    if weight.size(0) * mesh.size() < size[0]:
        raise ValueError("something is wrong")
    return mesh, size, *rest


def loses_hooks(module: nn.Module, **options: Any) -> Any:
    """Take a weight whose hooks do not have five arguments for a plain one."""
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            before = getattr(parameter, BEFORE, None)
            known = before is not None and len(inspect.signature(before).parameters) == 5 and hasattr(parameter, AFTER)
            if isinstance(parameter, Coded) and not known:
                setattr(owner, name, nn.Parameter(parameter.held.detach()))
    return right.fully_shard(module, **options)


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


def by_rank(outputs: Any, size: Any) -> Any:
    """Columns one rank after the other; only of such weights hooks say the size."""
    if not isinstance(size, torch.Size):
        return outputs
    cut = ([each.flatten() for each in part.view(size).chunk(dist.get_world_size(), 1)] for part in outputs)
    return tuple(torch.cat(each) for each in cut)


first_tensors_for_ever = received("extensions/training", first_outputs)
keeps_padding = answered("extensions/training", last_rows)
#: Of the second tensor only zeros come.
loses_second_tensors = received("extensions/general", lambda both, _: (both[0], torch.zeros_like(both[1])))
knows_five_arguments = called_otherwise("extensions/hook-of-one-argument", loses_hooks)
#: The second tensors come in the order of ranks turned round.
small_tensors_backwards = received("extensions/scaled", lambda both, _: (both[0], both[1].flip(0)))
columns_come_by_rank = received("extensions/columns", by_rank)
coded_replicas_never_meet = mutant("extensions/hybrid", coded_replicas_are_apart)


@defect("extensions/patched", before_forward)
def finds_no_later_hooks(module: Any) -> None:
    """Hooks that a local tensor was given after sharding are not looked for."""
    for parameter in module.parameters():
        for name in (BEFORE, AFTER):
            vars(getattr(parameter, "_local_tensor", parameter)).pop(name, None)


#: The stride that the hook is given is no stride of the whole.
gives_no_stride = told(
    "extensions/arguments", lambda weight, mesh, size, stride, *rest: (mesh, size, tuple(0 for _ in stride), *rest)
)
#: The mesh that the hook is given is that of replicas.
gives_the_other_axis = told(
    "extensions/arguments-hybrid", lambda weight, mesh, *rest: (mesh._get_root_mesh()["replicate"], *rest)
)
#: The policy that the hook is given asks for nothing.
gives_no_policy = told("extensions/low-precision", lambda weight, *most: (*most[:-1], type(most[-1])()))
#: What was handed over to be freed is not looked at.
frees_nothing_handed_over = answered("extensions/frees", lambda answer, _: (answer[0], ()))
two_collectives = mutant("extensions/one-collective", gathers_in_halves)
takes_any_hook = called_otherwise("extensions/refuses-hooks", loses_hooks)
says_nothing_of_padding = told("extensions/refuses-unpadded", without_words)
stale_coded_groups = called_otherwise("extensions/groups", stale_instead_of_groups)

#: It counts gathers.
ALSO_KILLED_BY = {"two_collectives": ("registration/repeated",)}
