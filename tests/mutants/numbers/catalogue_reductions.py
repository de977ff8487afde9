"""Implementations whose reductions have published defects: of buffers, scales, precision and timing.

Races are made to happen each time: memory that is freed too early is full of NaN, what comes late is the step before.
Right is: two ranks with gradients [1, 2] and [3, 6] have [2] and [4].
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.collective_trace.torch_names import reduce_scatter
from tests.mutants.hooking import each_gradient, instead, outputs
from tests.mutants.making import Reduction, after_runs, given, modules_of, mutant
from tests.mutants.numbers.parallel_chapter import hooks_norms
from tests.mutants.numbers.reduction_chapter import groups_of
from tests.mutants.numbers.replicas import mesh_of

# Memory.


class FreesTooEarly(Reduction):
    """What was reduced is freed, and has other contents, as soon as the next group is reduced: [nan] and [nan]."""

    here = threading.local()

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        before = vars(self.here).get("output")
        if before is not None:
            before.fill_(torch.nan)
        super().reduce(output, input, group, op)
        vars(self.here)["output"] = output


class ReadsTooEarly(Reduction):
    """Reads its input on another stream before gradients are copied there: what the step before left."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        read = input if self.before is None else self.before
        self.before = input.clone()
        super().reduce(output, read, group, op)


def where(fits: Callable[[dict[str, Any]], bool], reduction: type[Reduction]) -> Callable[[Any, dict[str, Any]], None]:
    """A change to what was sharded by such options: this reduces it."""

    def change(module: Any, options: dict[str, Any]) -> None:
        for each in modules_of(module) if fits(options) else ():
            each.set_custom_reduce_scatter(reduction())

    return change


def is_hybrid(options: dict[str, Any]) -> bool:
    """Whether there are replicas."""
    return options.get("mesh") is not None and options["mesh"].ndim == 2


def is_offloaded_hybrid(options: dict[str, Any]) -> bool:
    """Whether there are, and parameters rest on the CPU."""
    return is_hybrid(options) and options.get("offload_policy") is not None


def comes_late(module: Any, options: dict[str, Any]) -> None:
    """On the CPU there is still the gradient of the step before when backward returns."""

    def swap(parameter: Any) -> None:
        now = parameter.grad.to_local().clone()
        parameter.grad.to_local().copy_(vars(parameter).get("arrived", now))
        vars(parameter)["arrived"] = now

    for each in modules_of(module) if options.get("offload_policy") else ():
        each_gradient(swap)(each)


def keeps_the_newest(module: Any, options: dict[str, Any]) -> None:
    """On the CPU a gradient takes the place of the one that is there."""

    def drop(module: Any, _: Any) -> None:
        for parameter in module.parameters() if torch.is_grad_enabled() else ():
            parameter.grad = None

    if options.get("offload_policy") and isinstance(module, nn.Module):
        module.register_forward_pre_hook(drop, prepend=True)


# Sums that wait for replicas.


def around_reductions(change: Callable[[Any, Callable[[], None]], None]) -> Callable[[Any], None]:
    """A change to each module: ``change(group, right)`` takes the place of what torch does after backward."""

    def after(module: Any) -> None:
        for group in groups_of(module):
            group.post_backward = functools.partial(_around, change, group, group.post_backward)

    return after


def _around(change: Callable[..., None], group: Any, right: Callable[..., None], *args: Any) -> None:
    change(group, lambda: right(*args))


def rounds_what_waits(group: Any, right: Callable[[], None], dtype: torch.dtype = torch.bfloat16) -> None:
    """What is summed among shards until replicas are asked has eight bits, or those of another dtype."""
    right()
    if group._partial_reduce_output is not None:
        group._partial_reduce_output.copy_(group._partial_reduce_output.to(dtype))


def adds_what_waits_last(group: Any, right: Callable[[], None]) -> None:
    """Replicas average the last micro-batch; what waited is added after that, each replica its own."""
    waits = group._partial_reduce_output
    if not (group.reduce_grads and group.all_reduce_grads) or waits is None:
        right()
        return
    group._partial_reduce_output, before = None, group._all_reduce_hook
    group._all_reduce_hook = lambda reduced: torch.add(reduced, waits, out=reduced)
    right()
    group._all_reduce_hook = before


def never_at_the_end(group: Any, right: Callable[[], None]) -> None:
    """Groups whose inputs need no gradient, which torch reduces when all else is done, are forgotten."""
    if sys._getframe(2).f_code.co_name != "_root_post_backward_final_callback":
        right()


def mixes_everything(module: Any) -> None:
    """Averages parts over all ranks in place of replicas."""
    mesh = mesh_of(module)
    if mesh is not None and mesh.ndim == 2:
        module.set_all_reduce_hook(_average)


def _average(part: Tensor) -> None:
    dist.all_reduce(part)
    part /= dist.get_world_size()


# Operations and scales.


class AddsInFloat32(Reduction):
    """Exchanges parts and adds them in float32 into an output that is not: an error in low precision."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        if input.dtype.itemsize > 2:
            super().reduce(output, input, group, op)
            return
        parts = torch.empty_like(input)
        dist.all_to_all_single(parts, input, group=group)
        torch.sum(parts.view(group.size(), -1), 0, dtype=torch.float32, out=output)


class SplitsItsDivision(Reduction):
    """In float16 divides by about the root of the number of ranks before, and by the same, not the rest, after."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        if input.dtype != torch.float16:
            super().reduce(output, input, group, op)
            return
        before = 2 ** ((group.size().bit_length()) // 2)
        reduce_scatter(output, input / before, group=group, op=dist.ReduceOp.SUM)
        output /= before


class AveragesByAutograd(torch.autograd.Function):
    """An average of which autograd does not know the derivative."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        """``x`` again."""
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Refused."""
        raise RuntimeError("the derivative of an average is not implemented")


def of_eight_bits(parameter: DTensor) -> Any:
    """What tensor parallelism left partial is rounded before it is summed."""
    return lambda grad: DTensor.from_local(
        grad.to_local().bfloat16().to(grad.dtype), grad.device_mesh, grad.placements, run_check=False
    )


def exchanges_by_own_size(parameter: DTensor) -> None:
    """An optimizer exchanges parts of what has fewer rows than ranks, each as large as one's own."""
    mesh, part = parameter.device_mesh, parameter.to_local()
    if parameter.size(0) < mesh.size():
        sent = torch.zeros(part.numel() * mesh.size(), dtype=part.dtype)
        dist.all_to_all_single(torch.empty_like(sent), sent, group=mesh.get_group())


# When there is no reduction.


def stays_quiet(module: Any, right_method: Any, sync: bool, **options: Any) -> None:
    """Once off, synchronisation is never on again."""
    if not sync:
        right_method(sync, **options)


def waits_for_the_last_output(module: Any, output: Any) -> Any:
    """A group is reduced once the gradient of its last output has come, which never happens where it is unused."""
    if not isinstance(output, (tuple, list)) or not all(isinstance(one, Tensor) for one in output):
        return output
    if output[-1].requires_grad:
        module.set_requires_gradient_sync(False, recurse=False)
        output[-1].register_hook(lambda _: module.set_requires_gradient_sync(True, recurse=False))
    return output


frees_too_early = mutant("parity/exact", reduce=FreesTooEarly)
frees_offloaded_replicas = given("offload/hsdp", where(is_offloaded_hybrid, FreesTooEarly))
fills_memory_of_replicas = given("hsdp/exact", where(is_hybrid, FreesTooEarly))
reads_too_early = mutant("parity/exact", reduce=ReadsTooEarly)
copies_late = given("offload/exact", comes_late)
newest_alone = given("scripts/offload", keeps_the_newest)
waits_in_bfloat16 = mutant("accumulation/hsdp-scatters", around_reductions(rounds_what_waits))
waits_in_float16 = mutant(
    "reduction/half-range-partial", around_reductions(functools.partial(rounds_what_waits, dtype=torch.float16))
)
adds_after_replicas = mutant("accumulation/hsdp-scatters", around_reductions(adds_what_waits_last))
forgets_the_first_layers = mutant("parity/exact", around_reductions(never_at_the_end))
averages_all_for_replicas = mutant("hsdp/exact", mixes_everything)
fails_to_add_in_float32 = mutant("precision/exact", reduce=AddsInFloat32)
splits_its_division = mutant("reduction/half-range", reduce=SplitsItsDivision)
averages_by_autograd = mutant("parity/exact", outputs(lambda _, output: AveragesByAutograd.apply(output)))
#: Divides by the number of passes that were added up: two micro-batches count as one of half their weight.
averages_micro_batches = mutant("accumulation/quiet", after_runs(lambda output, runs: output.div_(max(1, runs))))
sums_tp_in_bfloat16 = mutant("tensor-parallel/decoder", hooks_norms(of_eight_bits))
never_loud_again = mutant("accumulation/quiet", instead("set_requires_gradient_sync", stays_quiet))
exchanges_uneven_parts = mutant("reshard/gradients", each_gradient(exchanges_by_own_size))
needs_its_last_output = mutant("autograd/unused-output", outputs(waits_for_the_last_output))

ALSO_KILLED_BY = {
    "fills_memory_of_replicas": ("reduction/divide-factor-hsdp",),
    **dict.fromkeys(
        ("splits_its_division", "fails_to_add_in_float32"), ("registration/converted-first",)
    ),  # half precision
}
RAISES = ("fails_to_add_in_float32", "averages_by_autograd", "exchanges_uneven_parts")
