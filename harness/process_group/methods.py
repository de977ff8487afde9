"""c10d's methods of a process group, each of which posts one call: what a group's collectives are to its user.

A group in Python derives from ``CollectiveGroup`` and says what posting a call means, and sending.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from harness.process_group.arithmetic import op_words


class CollectiveWork(dist._Work):
    """The handle of a posted collective: ``wait`` is the group's own, ``outputs`` are there after it."""

    outputs: Sequence[Tensor]

    def result(self) -> list[Tensor]:
        """The output tensors, once there."""
        self.wait()
        return list(self.outputs)

    def get_future(self) -> Future[list[Tensor]]:
        """A completed future: asking for it waits, as nothing else runs that could complete it."""
        future: Future[list[Tensor]] = Future()
        future.set_result(self.result())
        return future


#: From 2.15 on torch attaches its flight recorder, which finds no name: it asks for that of a backend in C++.
ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": "0"} if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15) else {}


class CollectiveGroup(dist.ProcessGroup):
    """A process group in Python. All methods have c10d's own names and arguments.

    ``name`` is the one under which torch registers it; ``number`` is this rank's place among ``ranks``, global numbers.
    """

    def __init__(self, name: str, number: int, ranks: tuple[int, ...]) -> None:
        super().__init__(number, len(ranks))
        self._name, self._number, self._ranks = name, number, ranks
        os.environ.update(ENVIRONMENT)

    def size(self) -> int:
        """How many ranks the group has."""
        return len(self._ranks)

    def rank(self) -> int:
        """This rank's place in the group."""
        return self._number

    @property
    def group_name(self) -> str:
        """The name under which torch registered the group."""
        return self._name

    def _get_backend(self, device: torch.device) -> dist.ProcessGroup:
        """What does the work on a device, this group; from 2.15 on torch asks before it sends a batch."""
        return self

    @abstractmethod
    def _post(
        self, name: str, opts: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *agree: Any, **more: Any
    ) -> Any:
        """Take part in a collective: ``agree`` has to be the same on all ranks; ``more`` are fields of a ``Call``."""

    @abstractmethod
    def send(self, tensors: Any, dst: int, tag: int) -> Any:
        """Send to group rank ``dst``."""

    @abstractmethod
    def recv(self, tensors: Any, src: int, tag: int) -> Any:
        """Receive from group rank ``src``."""

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce to all ranks; one tensor or several."""
        tensors, op = _listed(tensors), _op(opts)
        return self._post("all_reduce", opts, tensors, tensors, sizes(tensors), op_words(op), op=op)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """Reduce to the root."""
        op = _op(opts)
        agree = (sizes(tensors), op_words(op), _root(opts))
        return self._post("reduce", opts, tensors, tensors, *agree, op=op, root=opts.rootRank)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce a list of tensors, one for each rank."""
        _expect(len(inputs) == 1 and len(inputs[0]) == self.size(), "reduce_scatter", f"{self.size()} input tensors")
        op = _op(opts)
        return self._post("reduce_scatter", opts, inputs[0], outputs, sizes(inputs[0]), op_words(op), op=op)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce pairs of tensors, each input as long as its output times the ranks."""
        for target, source in zip(outputs, inputs, strict=True):
            self._expect_parts("reduce_scatter_single", ("input", source), ("output", target))
        op = _op(opts)
        return self._post("reduce_scatter_single", opts, inputs, outputs, sizes(inputs), op_words(op), op=op)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Reduce one tensor and scatter it."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    # Gathers.

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather into a list."""
        targets, source = outputs[0], _listed(inputs)[0]
        _expect(len(targets) == self.size(), "all_gather", f"{self.size()} output tensors, got {len(targets)}")
        _expect(
            targets[self._number].numel() == source.numel(),
            "all_gather",
            f"an output of {source.numel()} elements at this rank's place, got {targets[self._number].numel()}",
        )
        return self._post("all_gather", opts, [source], targets, sizes(targets))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather pairs of tensors, each output as long as its input times the ranks."""
        for target, source in zip(outputs, inputs, strict=True):
            self._expect_parts("all_gather_single", ("output", target), ("input", source))
        return self._post("all_gather_single", opts, inputs, outputs, sizes(inputs))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Gather into one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Gather several tensors into lists, one collective after the other."""
        works = [self.allgather([targets], [source]) for targets, source in zip(output_lists, inputs, strict=True)]
        for work in works[:-1]:
            work.wait()
        return works[-1]

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Gather into a list on the root."""
        targets = outputs[0] if outputs else []
        return self._post("gather", opts, inputs, targets, sizes(inputs), _root(opts), root=opts.rootRank)

    # One to many, many to many.

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """Send the root's tensors to all ranks."""
        return self._post("broadcast", opts, tensors, tensors, sizes(tensors), _root(opts), root=opts.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Send the root's r-th tensor to rank r."""
        sources = inputs[0] if inputs else []
        if self._number == opts.rootRank:
            _expect(len(sources) == self.size(), "scatter", f"{self.size()} input tensors, got {len(sources)}")
        return self._post("scatter", opts, sources, outputs, sizes(outputs), _root(opts), root=opts.rootRank)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Exchange lists of tensors; sizes may differ from pair to pair."""
        _expect(len(outputs) == len(inputs) == self.size(), "all_to_all", f"{self.size()} inputs and outputs")
        return self._post("all_to_all", opts, inputs, outputs, str(inputs[0].dtype))

    def all_to_all_single(self, output: Tensor, input: Tensor, to: list[int], of: list[int], opts: Any = None) -> Any:
        """Exchange parts of one tensor, cut along dim 0: evenly, or in the sizes given."""
        outputs = output.split(to) if to else output.chunk(self.size())
        inputs = input.split(of) if of else input.chunk(self.size())
        return self.alltoall(list(outputs), list(inputs), opts)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        return self._post("barrier", opts, [], [])

    def _expect_parts(self, name: str, whole: tuple[str, Tensor], part: tuple[str, Tensor]) -> None:
        """Raise ValueError unless one tensor is as long as all ranks' parts, and of their dtype."""
        (kind, all_of), (kind_of_part, one) = whole, part
        if all_of.numel() != one.numel() * self.size() or all_of.dtype != one.dtype:
            raise ValueError(
                f"{name}: expected an {kind} of {self.size()} × the {kind_of_part}'s {one.numel()} elements and of its "
                f"dtype {one.dtype}, got {all_of.numel()} of {all_of.dtype}"
            )

    # What torch 2.13 renamed, under the names that older ones call.

    _allgather_base: Any = all_gather_single
    _reduce_scatter_base: Any = reduce_scatter_single
    alltoall_base: Any = all_to_all_single
    allgather_into_tensor_coalesced: Any = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced: Any = reduce_scatter_single_coalesced

    # The coalescing manager of c10d: calls are collected by torch and arrive in their coalesced forms.

    def _start_coalescing(self, device: torch.device) -> None:
        pass

    def _end_coalescing(self, device: torch.device) -> None:
        pass


def ranks_of(options: Any) -> tuple[int, ...]:
    """The global ranks of the group that torch asks for."""
    return tuple(options.global_ranks_in_group) or tuple(range(options.group_size))


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _op(opts: Any) -> Any:
    return opts.reduceOp if opts is not None else dist.ReduceOp(dist.ReduceOp.SUM)


def _root(opts: Any) -> str:
    return f"root={opts.rootRank}"


def sizes(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Of each tensor what all ranks have to agree about."""
    return tuple((tensor.dtype, tensor.numel()) for tensor in tensors)


def _expect(holds: bool, name: str, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {wanted}")
