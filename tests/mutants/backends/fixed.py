"""A correct backend: gloo, with its gaps and defects fixed. Mutant backends differ from it in one thing.

gloo reduces strided tensors wrongly, has no PREMUL_SUM, and its reduce-scatters never say that they are completed. So
every collective works on contiguous copies, and its ``Work`` copies results back. Ranks with [1 2] and [3 4] that
all-reduce by PREMUL_SUM(0.5) send [0.5 1] and [1.5 2], and get [2 3].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from harness.vendor import Backend
from tests.mutants.backends.backends import OverGloo, mutant, over_gloo

#: What this project calls a collective, by what c10d calls it in one version or another.
KINDS = {
    "_allgather_base": "all_gather_single",
    "all_gather_single": "all_gather_single",
    "all_gather_single_coalesced": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_single": "reduce_scatter_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single",
    "reduce_scatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "scatter": "scatter",
    "gather": "gather",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
}


@dataclass
class Call:
    """One collective on one rank: the caller's tensors, the copies that gloo works on, and the options."""

    kind: str
    name: str
    outputs: list[Tensor]
    inputs: list[Tensor]
    results: list[Tensor]
    sent: list[Tensor]
    options: Any
    #: For subclasses that must remember something until the call is waited for.
    note: Any = None

    @property
    def op(self) -> str:
        """The reduction's name, if it is one."""
        reduction = getattr(self.options, "reduceOp", None)
        return str(dist.ReduceOp.RedOpType(reduction.op)).rpartition(".")[2] if reduction is not None else ""

    @property
    def numel(self) -> int:
        """How large the first result is."""
        return self.results[0].numel() if self.results else 0


class Waiting(dist._Work):
    """Work that, once waited for, has results where the caller wants them, and says so."""

    def __init__(self, group: FixedGloo, call: Call, inner: Any) -> None:
        super().__init__()
        self.group, self.call, self.inner, self.done = group, call, inner, False

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self.done:
            self.inner.wait()
            self.done = True
            self.group.after(self.call)
            self.group.deliver(self.call)
        return True

    def is_completed(self) -> bool:
        return self.done

    def result(self) -> list[Tensor]:
        self.wait()
        return self.call.outputs

    def get_future(self) -> Future[list[Tensor]]:
        future: Future[list[Tensor]] = Future()
        future.set_result(self.result())
        return future


class FixedGloo(OverGloo):
    """Right in all that the suites ask of a backend. Subclasses override one of the steps."""

    work: type[Waiting] = Waiting

    def multiply(self, call: Call) -> None:
        """Make a sum of products of a PREMUL_SUM."""
        multiply(call)

    def before(self, call: Call) -> None:
        """What is done to the copies before they are sent."""

    def after(self, call: Call) -> None:
        """What is done to the results before they are delivered."""

    def deliver(self, call: Call) -> None:
        """Give the caller the results."""
        for output, result in zip(call.outputs, call.results, strict=True):
            output.data.copy_(result)

    def perform(self, call: Call, arguments: list[Any]) -> Any:
        """Let gloo do it."""
        return getattr(self.inner, call.name)(*arguments)


def _fixed(name: str) -> Callable[..., Any]:
    def do(self: FixedGloo, *arguments: Any) -> Any:
        copies = [copied(argument) for argument in arguments]
        inputs = 1 if isinstance(arguments[1], (list, Tensor)) else 0  # else one place holds both
        call = Call(
            KINDS[name],
            name,
            *(list(flat(arguments[place])) for place in (0, inputs)),
            *(list(flat(copies[place])) for place in (0, inputs)),
            arguments[-1],
        )
        if call.op == "PREMUL_SUM":
            self.multiply(call)
        self.before(call)
        return self.work(self, call, self.perform(call, copies))

    return do


def multiply(call: Call) -> None:
    """Make a sum of products of it."""
    factor = call.options.reduceOp.__getstate__()[1]
    for tensor in call.sent:
        tensor *= factor
    call.options.reduceOp = dist.ReduceOp.SUM


def copied(argument: Any) -> Any:
    """Contiguous copies of all tensors in an argument."""
    if isinstance(argument, list):
        return [copied(each) for each in argument]
    return argument.detach().clone(memory_format=torch.contiguous_format) if isinstance(argument, Tensor) else argument


def flat(argument: Any) -> Iterator[Tensor]:
    """All tensors in an argument, in order."""
    if isinstance(argument, list):
        for each in argument:
            yield from flat(each)
    elif isinstance(argument, Tensor):
        yield argument


for _name in KINDS:
    if hasattr(dist.ProcessGroup, _name):
        setattr(FixedGloo, _name, _fixed(_name))

right = over_gloo("gloo_fixed", FixedGloo)


def defect(requirement: str, step: str) -> Callable[[Callable[..., None]], Backend]:
    """What this decorates, ``function(group, call)``, is a step of a backend that is right but for it."""

    def made(function: Callable[..., None]) -> Backend:
        members = {"__module__": function.__module__, step: function}
        return mutant(requirement, type(function.__name__, (FixedGloo,), members))

    return made
