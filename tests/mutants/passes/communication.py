"""Implementations that say too much, too little, or to the wrong ones; results are right wherever that is possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.vendor import Implementation
from tests.mutants import name_of
from tests.mutants.making import Change, Gather, changed, gathered, gathering, mutant, reduced, reducing, right, sums


def without(requirement: str, method: str, answer: Callable[..., Any] = lambda *_, **__: None) -> Implementation:
    """torch's implementation where a method does nothing, or something else."""
    return mutant(
        requirement, after=lambda module: setattr(module, method, lambda *args, **more: answer(module, *args, **more))
    )


def over_all(options: dict[str, Any]) -> dict[str, Any]:
    """Frees everything where a smaller group was asked for."""
    value = options.get("reshard_after_forward")
    return {**options, "reshard_after_forward": True} if type(value) is int else options


def root_too(options: dict[str, Any]) -> dict[str, Any]:
    """Frees the root's parameters after forward, where nothing was asked for."""
    return {**options, "reshard_after_forward": options.get("reshard_after_forward") is not False}


def sharded_with_all_trained(module: Any, **options: Any) -> Any:
    """Unfreezes what it is given."""
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    return right.fully_shard(module, **options)


def sharded_and_averaged_again(module: Any, mesh: Any = None, **options: Any) -> Any:
    """All-reduces among replicas what has been."""
    result = right.fully_shard(module, mesh=mesh, **options)
    if mesh is not None and mesh.ndim == 2:
        group = mesh.get_group(0)
        result.set_all_reduce_hook(lambda part: dist.all_reduce(part, op=dist.ReduceOp.AVG, group=group))
    return result


def gathers_when_run_again(module: Any) -> None:
    """Frees and gathers in a forward that runs in backward."""

    def again(module: Any, _: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            module.reshard()
            module.unshard()

    inner = next((each for each in module.children() if isinstance(each, nn.Linear)), None)
    if inner is not None and not isinstance(module, nn.Sequential):
        inner.register_forward_pre_hook(lambda _, inputs: again(module, inputs))


def on_all(module: Any, change: Change) -> None:
    """Change every sharded module in one."""
    for each in module.modules():
        if isinstance(each, right.module_class or object):
            change(each)


def sums_apart(module: Any, enable: bool = True, recurse: bool = True) -> None:
    """A group of their own that only adds."""
    on_all(module, sums)


def forgets_to_fill(module: Any, enable: bool = True) -> None:
    """Memory of the group into which nothing is gathered: it holds what it held."""
    sums(module)


class InFloats(Gather):
    """Gathers into memory of the default dtype, whatever is gathered."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor."""
        return torch.empty(*size, device=device)


def asks_for_floats(module: Any, enable: bool = True) -> None:
    """Memory of the group is float32 only."""
    module.set_custom_all_gather(InFloats())


def reshards_if_it_is_told(module: Any, reshard: Any, recurse: bool = True) -> None:
    """What is no bool is neither refused nor done."""
    if isinstance(reshard, bool):
        type(module).set_reshard_after_forward(module, reshard, recurse)


def sums_with_room(module: Any, room: int, recurse: bool = True) -> None:
    """With room for several inputs, averages are sums."""
    if room > 1:
        sums(module)


in_two_messages = reducing(lambda output, input, group, op: [reduced(output, input, group, op) for _ in range(2)])


def sends_twice(module: Any, enable: bool, *, recurse: bool = True) -> None:
    """Where unused gradients are reduced, they take a message of their own."""
    type(module).set_reduce_scatter_unused_params(module, enable, recurse=recurse)
    on_all(module, in_two_messages)


#: Asks for the same once more.
gathers_twice = mutant(
    "communication/forward",
    gathering(lambda output, input, group: [gathered(output, input, group) for _ in range(2)]),
)
#: Sends the rows in two halves, though the second has nothing new.
reduces_in_two_messages = mutant("communication/backward", in_two_messages)
sends_zeros_apart = without("communication/unused", "set_reduce_scatter_unused_params", sends_twice)
averages_replicas_again = replace(right, name=name_of("communication/hsdp"), fully_shard=sharded_and_averaged_again)
gathers_over_all = changed("communication/to-group", over_all)
cannot_be_set_later = without("communication/set-later", "set_reshard_after_forward")
cannot_be_resharded = without("communication/by-hand", "reshard")
gathers_what_is_not_needed = without("communication/not-in-backward", "set_unshard_in_backward")
frees_the_root = changed("communication/forward-twice", root_too)
reduces_what_is_frozen = replace(right, name=name_of("communication/frozen"), fully_shard=sharded_with_all_trained)
#: Knows of no low precision.
gathers_in_full_precision = changed(
    "communication/dtypes", lambda options: {name: value for name, value in options.items() if name != "mp_policy"}
)
gathers_for_recomputation = mutant("communication/recomputed", gathers_when_run_again)
#: What a collective of the user's returns from may be still under way.
has_own_gathers_return_early = mutant("communication/own-results", lambda module: module._set_unshard_async_op(True))
ignores_own_collectives = without("communication/own-collectives", "set_custom_reduce_scatter")
has_one_group = without("communication/group-apart", "set_separate_reduce_scatter_group")
sums_in_a_group_apart = without("communication/group-apart-trains", "set_separate_reduce_scatter_group", sums_apart)
sums_in_memory_of_the_group = without(
    "communication/group-memory", "set_allocate_memory_from_process_group_for_comm", forgets_to_fill
)
asks_for_memory_of_floats = without(
    "communication/group-memory", "set_allocate_memory_from_process_group_for_comm", asks_for_floats
)
allows_both = without("communication/refuses-both", "set_allocate_memory_from_process_group_for_comm")
sums_where_there_is_room = without(
    "communication/input-buffers", "set_reduce_scatter_max_input_buffers", sums_with_room
)
takes_any_room = without("communication/refuses-room", "set_reduce_scatter_max_input_buffers")
takes_any_resharding = without("communication/refuses-resharding", "set_reshard_after_forward", reshards_if_it_is_told)

#: It makes what is frozen need gradients.
ALSO_KILLED_BY = {
    "reduces_what_is_frozen": ("entry/needs-gradients",),
    "gathers_over_all": ("reshard/",),
    **dict.fromkeys(
        ("cannot_be_set_later", "cannot_be_resharded", "frees_the_root"), ("scripts/gather",)
    ),  # explicitly, too
    "gathers_in_full_precision": ("scripts/precision",),  # which looks at what is gathered
}
#: What is gathered is refused by a memory of another dtype.
RAISES = {"asks_for_memory_of_floats"}
#: Where the thread world has nothing to judge.
IN_PROCESSES = {"sums_in_memory_of_the_group", "asks_for_memory_of_floats"}
