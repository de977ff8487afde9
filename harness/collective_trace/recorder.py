"""The recorder: every collective that a rank issues, in order, as plain data that is the same in every world.

A rank of two that reduce-scatters four float32 gradients notes::

    {"op": "reduce_scatter", "input": {"numel": 4, "bytes": 16, "dtype": "float32"},
     "output": {"numel": 2, "bytes": 8, "dtype": "float32"}, "reduce": "AVG", "ranks": [0, 1], "async": False}

Asked for waits as well, it notes when a rank first waited for what it had issued, by the entry's place in the list::

    {"op": "wait", "of": 0}

In the thread world our own process group sees every call. Elsewhere torch's dispatcher does: it sees direct calls,
calls from backward, and functional collectives, which DTensors use. Calls to a process group that is written in Python
do not pass the dispatcher, so its methods are wrapped. Other threads of the program, and calls that bypass the process
group and use its backend object directly, are not recorded. Collectives on fake tensors do not count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.collective_trace.python_groups import GroupsInPython
from harness.collective_trace.reduction_names import kind_name, op_name
from harness.collective_trace.work_handles import Works, flat

#: One collective. ``op`` is one word whether tensors come one by one or in lists; ``numel`` and ``bytes`` are sums over
#: them. ``async`` is None for point-to-point calls, of which torch does not say it.
Entry = dict[str, Any]

#: A way to listen: what is issued inside the block is appended to the list, and waits too if they are asked for.
Listen = Callable[[list[Entry], bool], AbstractContextManager[None]]

#: The lists in which a wait for one collective will be noted, and the places of its entry in them.
Heard = list[tuple[list[Entry], int]]

_listening = threading.local()


def entry(
    op: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    reduce: str | None,
    ranks: Sequence[int],
    is_async: Any,
) -> Entry:
    """One collective as data."""
    return {
        "op": op,
        "input": _amount(inputs),
        "output": _amount(outputs),
        "reduce": reduce,
        "ranks": sorted(ranks),
        "async": is_async,
    }


def _amount(tensors: Sequence[Tensor]) -> dict[str, Any]:
    return {
        "numel": sum(tensor.numel() for tensor in tensors),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "dtype": "+".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})),
    }


# Where the process group is ours.


@contextmanager
def by_group(entries: list[Entry], waits: bool = False) -> Iterator[None]:
    """Listen to what process groups of this thread ``note``."""
    outer = getattr(_listening, "traces", ())
    _listening.traces = (*outer, (entries, waits))
    try:
        yield
    finally:
        _listening.traces = outer


def note(*what: Any) -> Heard:
    """Note an ``entry`` in the traces that are open on this thread; free when there is none."""
    heard: Heard = []
    for entries, waits in getattr(_listening, "traces", ()):
        heard += [(entries, len(entries))] if waits else []
        entries.append(entry(*what))
    return heard


def note_wait(heard: Heard) -> None:
    """Note that what ``note`` heard of has been waited for, in those of its traces that are still open; once."""
    still_open = [id(entries) for entries, _ in getattr(_listening, "traces", ())]
    for entries, place in heard:
        if id(entries) in still_open:
            entries.append({"op": "wait", "of": place})
    heard.clear()


# Where it is torch's.

_OPS = {
    "all_gather": "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ "
    "all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out",
    "reduce_scatter": "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_ "
    "reduce_scatter_tensor reduce_scatter_tensor_coalesced reduce_scatter_tensor_out",
    "all_reduce": "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_",
    "reduce": "reduce_",
    "broadcast": "broadcast_ broadcast",
    "gather": "gather_",
    "scatter": "scatter_",
    "all_to_all": "alltoall_ alltoall_base_ all_to_all_single",
    "barrier": "barrier monitored_barrier_",
    "send": "send isend",
    "recv": "recv_ recv_any_source_ irecv",
}
#: What torch's dispatcher calls each collective, and what we do.
_OP_OF = {name: op for op, names in _OPS.items() for name in names.split()}
_INPUTS = ("input", "inputs", "input_tensor", "input_tensors", "input_list", "tensors", "tensor")
_OUTPUTS = ("output", "outputs", "output_tensor", "output_tensors", "output_lists", "out")
_ONE_SIDED = {"send": "input", "recv": "output"}


class _Listener(TorchDispatchMode):
    """Hears what the dispatcher is asked to do, also from inside tensor subclasses, which unwrap themselves first."""

    def __init__(self, entries: list[Entry], works: Works | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._entries, self._works = entries, works
        self.by_hand = GroupsInPython(self._told_by_hand)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake = any(issubclass(cls, FakeTensor) for cls in types)
        if not fake and any(cls not in (Tensor, torch.nn.Parameter) for cls in types):
            return NotImplemented  # DTensors and their like ask again with what they are made of
        op = None if fake or self.by_hand.busy else _collective(func)
        with self.by_hand.answering() if op is not None else nullcontext():
            result = func(*args, **(kwargs or {}))
        if op is not None:
            self._note(_heard(op, _named(func, args, kwargs or {}), result), result)
        elif self._works is not None and not fake and str(func) == "_c10d_functional.wait_tensor.default":
            self._works.waited_for_tensor(args[0])
        return result

    def _note(self, new: list[Entry], result: Any) -> None:
        for each in new:
            self._entries.append(each)  # one by one: see ``FailingTrace``
        if self._works is not None:
            self._works.keep(result, range(len(self._entries) - len(new), len(self._entries)))

    def _told_by_hand(self, op: str, group: Any, inputs: Any, outputs: Any, options: Any, work: Any) -> None:
        pairs = [(inputs, outputs)]
        if op == "all_gather" and isinstance(outputs, list) and isinstance(outputs[0], list):
            pairs = list(zip(inputs, outputs, strict=True))  # into lists, which is done one by one
        is_async = None if op in _ONE_SIDED else getattr(options, "asyncOp", True)
        reduction, ranks = _reduction(getattr(options, "reduceOp", None)), dist.get_process_group_ranks(group)
        self._note([entry(op, flat(one), flat(many), reduction, ranks, is_async) for one, many in pairs], work)


def _collective(func: Any) -> str | None:
    space, _, name = str(getattr(func, "_overloadpacket", "")).partition(".")
    return _OP_OF.get(name) if space in ("c10d", "_c10d_functional") else None


def _named(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the operator's schema, defaults included."""
    arguments = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return {**defaults, **{argument.name: value for argument, value in zip(arguments, args, strict=False)}, **kwargs}


def _heard(op: str, named: dict[str, Any], result: Any) -> list[Entry]:
    """The entries of one call: several if it gathers several tensors into lists, which is done one by one."""
    inputs = next(named[name] for name in _INPUTS if name in named)
    outputs: Any = next((named[name] for name in _OUTPUTS if name in named), None)
    if "output_lists" in named:
        return [_told(op, [source], targets, named) for source, targets in zip(inputs, outputs, strict=True)]
    if outputs is None:
        outputs = inputs if "process_group" in named else result
    if op in _ONE_SIDED:
        inputs, outputs = ([], inputs) if op == "recv" else (inputs, [])
    if op == "barrier":
        inputs = outputs = []
    return [_told(op, flat(inputs), flat(outputs), named)]


def _told(op: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], named: dict[str, Any]) -> Entry:
    is_async = None if op in _ONE_SIDED else named.get("async_op", True)
    return entry(op, inputs, outputs, _reduction(named.get("reduce_op")), _ranks(named), is_async)


def _reduction(op: Any) -> str | None:
    """``"SUM"``; functional collectives have it as a word, groups in Python as torch's own object, others another."""
    if op is None or isinstance(op, str):
        return op and op.upper()
    return op_name(op) if isinstance(op, dist.ReduceOp) else kind_name(op.op())


def _ranks(named: dict[str, Any]) -> list[int]:
    group: Any = named.get("process_group", named.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    elif not isinstance(group, dist.ProcessGroup):
        group = c10d._resolve_process_group(group)  # a name
    return dist.get_process_group_ranks(group)


@contextmanager
def by_dispatcher(entries: list[Entry], waits: bool = False) -> Iterator[None]:
    """Listen to torch's dispatcher, on this thread and in backward."""
    with Works(entries) if waits else nullcontext() as works, _Listener(entries, works) as listener, listener.by_hand:
        yield
