"""Implementations whose state has published defects: what is saved, how it is named, and where it arrives.

Right is: rows [1, 2, 3] and [4, 5] saved by two ranks are [1, 2], [3, 4] and [5] on three, as is what optimizers keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from harness.vendor import Implementation
from suites.oracle.layout import own
from tests.mutants.making import mutant
from tests.mutants.modules.init_chapters import rebuilt
from tests.mutants.numbers.replicas import mesh_of
from tests.mutants.state.distributed_checkpoint import hybrid, where
from tests.mutants.state.matrix_chapter import State, its_own, loads_net, loads_optimizer, with_functions
from tests.mutants.state.state_chapters import loads, on_tensor_parallel, saves

# The net's.


def refuse(fits: Callable[[Any, Any], bool], words: str) -> Callable[[Any, State], None]:
    """An error where an entry of a module's state is such."""

    def look(module: Any, state: State) -> None:
        mesh = mesh_of(module)
        if mesh is not None and any(fits(mesh, value) for value in state.values()):
            raise RuntimeError(words)

    return look


def does_not_fit(mesh: DeviceMesh, value: Any) -> bool:
    """Rows that all ranks of both axes do not divide."""
    return isinstance(value, DTensor) and bool(value.size(0) % mesh.size())


def writes_no_tied_values(module: Any, state: State) -> None:
    """The second name of a tied weight is listed, and nothing is written for it."""
    first = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    for name in set(state) - first:
        state[name] = torch.zeros_like(state[name])


def asks_for_meshes(module: Any, state: State) -> None:
    """Takes every entry for a DTensor, and a buffer has no mesh."""
    for value in state.values():
        assert value.device_mesh is not None


def asks_for_a_device(module: Any, state: State) -> None:
    """What a rank without rows loads is made on the device that CUDA says is the current one."""
    for value in state.values():
        if isinstance(value, DTensor) and not value.to_local().numel():
            torch.empty(0, device=torch.cuda.current_device())


def half_of_it(entry: DTensor) -> DTensor:
    """Says that the last axis has replicas: half of the rows are nowhere."""
    *others, last = entry.placements
    return entry if last.is_replicate() else rebuilt(entry, entry.to_local(), placements=(*others, Replicate()))


def by_heads(module: nn.Module, before: State) -> None:
    """What was loaded goes by two heads: a rank beyond the second has the rows of one before it."""
    for tensor in module.parameters():
        if isinstance(tensor, DTensor) and tensor.device_mesh.ndim == 1 and tensor.device_mesh.size() > 2:
            chunks, place = tensor.full_tensor().chunk(tensor.device_mesh.size()), tensor.device_mesh.get_local_rank()
            if place >= 2:
                part = tensor.to_local()
                part.copy_(chunks[place % 2][: part.size(0)])


def one_row_off(module: nn.Module, before: State) -> None:
    """Ranks but the first begin to read one row too early."""
    for tensor in module.parameters():
        if isinstance(tensor, DTensor) and tensor.device_mesh.ndim == 1:
            full, part = tensor.full_tensor(), tensor.to_local()
            start = -(-full.size(0) // tensor.device_mesh.size()) * tensor.device_mesh.get_local_rank()
            if start and part.numel():
                part.copy_(full[start - 1 : start - 1 + part.size(0)])


#: How many ranks have saved last; those that load are other ranks, in this same process.
_savers: list[int] = []


def remembering_savers(requirement: str) -> Implementation:
    """What ranks saved that there are no more is not looked for."""

    def get(module: nn.Module, **options: Any) -> State:
        if not vars(module).get("is_loaded"):
            _savers[:] = [dist.get_world_size()]
        return {name: value.clone() for name, value in its_own.get_model_state_dict(module, **options).items()}

    def set_state(module: nn.Module, state: State, **options: Any) -> Any:
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        result = its_own.set_model_state_dict(module, state, **options)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                _lose(parameter, before[name])
        return result

    return with_functions(requirement, get_model_state_dict=get, set_model_state_dict=set_state)


def _lose(parameter: Any, before: Any) -> None:
    """Rows that were saved by a rank beyond those there are now keep their old values."""
    if isinstance(parameter, DTensor) and _savers:
        ranks, part = parameter.device_mesh.size(), parameter.to_local()
        kept = -(-parameter.size(0) // max(_savers[0], ranks + 1)) * ranks
        start = -(-parameter.size(0) // ranks) * parameter.device_mesh.get_local_rank()
        part[max(0, kept - start) :] = before.to_local()[max(0, kept - start) :]


def in_the_dtype_of_each(requirement: str) -> Implementation:
    """Rank 0 broadcasts numbers of two bytes, and others take them for half as many of more bytes."""

    def set_state(module: nn.Module, state: State, options: Any = None) -> Any:
        result = its_own.set_model_state_dict(module, state, options=options)
        if options is not None and options.broadcast_from_rank0 and dist.get_rank():
            for parameter in module.parameters():
                part = own(parameter.detach())
                short = part.bfloat16().view(torch.uint8).reshape(-1)
                part.view(torch.uint8).view(-1)[: short.numel()] = short
        return result

    return with_functions(requirement, set_model_state_dict=set_state)


# The optimizer's.


def saves_optimizer(requirement: str, change: Callable[[State], State]) -> Implementation:
    """What an optimizer keeps is changed before it is handed out, and loaded as torch loads it."""

    def get(module: nn.Module, optimizer: Any, **options: Any) -> State:
        return change(its_own.get_optimizer_state_dict(module, optimizer, **options))

    return with_functions(requirement, get_optimizer_state_dict=get)


def each_kept(change: Callable[[str, Any], Any]) -> Callable[[State], State]:
    """A change to a state: to each thing that is kept, by its key."""
    return lambda state: {
        **state,
        "state": {
            name: {key: change(key, value) for key, value in kept.items()} for name, kept in state["state"].items()
        },
    }


def of_inferred_size(_: str, value: Any) -> Any:
    """Takes every rank's part for as large as one's own."""
    if not isinstance(value, DTensor):
        return value
    return DTensor.from_local(value.to_local(), value.device_mesh, value.placements, run_check=False)


def without_steps(state: State) -> State:
    """The planner does not know of numbers beside tensors: counts of steps are left out."""
    kept = {name: {k: v for k, v in each.items() if k != "step"} for name, each in state["state"].items()}
    return {**state, "state": kept}


def named_by_rank(state: State) -> State:
    """What a rank keeps is under a name of its own, which another number of ranks does not look for."""
    if not state["state"]:
        return state
    suffix = f".rank{dist.get_rank()}of{dist.get_world_size()}"
    return {**state, "state": {name: {**k, f"part{suffix}": torch.ones(1)} for name, k in state["state"].items()}}


def refuses_empty(module: nn.Module, optimizer: Any, **options: Any) -> State:
    """An optimizer that keeps nothing yet has no first entry to look at."""
    if not optimizer.state:
        raise TypeError("'NoneType' object is not subscriptable")
    state: State = its_own.get_optimizer_state_dict(module, optimizer, **options)
    return state


def begin_anew(module: nn.Module, optimizer: Any) -> None:
    """Each rank saved its own optimizer's state, of which rank 0's was kept: the others resume with no moments."""
    for kept in optimizer.state.values() if dist.get_rank() else ():
        for key in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            if isinstance(kept.get(key), Tensor):
                own(kept[key]).zero_()


def through_bytes(module: nn.Module, optimizer: Any) -> None:
    """Numbers of a format of the optimizer's own are read as integers of eight bits."""
    for kept in optimizer.state.values():
        for key in ("exp_avg", "exp_avg_sq"):
            if isinstance(kept.get(key), Tensor):
                own(kept[key]).copy_(own(kept[key]).to(torch.int8))


#: Any mesh of two axes is taken for one with tensor parallelism.
hybrid_state_is_refused = mutant(
    "state-dict/hsdp-values", saves(refuse(lambda mesh, value: hybrid(mesh), "2-D needs a DTensor"))
)
uneven_state_is_refused = mutant(
    "state-dict/2d-load", on_tensor_parallel(loads(refuse(does_not_fit, "expected even rows")))
)
tied_values_are_not_written = mutant("state-dict/full-of-transformer", saves(writes_no_tied_values))
buffers_have_no_mesh = mutant("state-dict/buffers", loads(asks_for_meshes))
empty_parts_need_cuda = mutant("state-dict/load", loads(asks_for_a_device))
half_in_three_axes = mutant("distributed-checkpoint/elsewhere-3d", where(lambda mesh: mesh.ndim == 3, half_of_it))
rows_go_by_heads = loads_net("state-matrix/shards", by_heads)
rows_are_one_off = loads_net("state-matrix/shards", one_row_off)
forgets_ranks_that_are_gone = remembering_savers("state-matrix/resumes")
broadcasts_in_two_dtypes = in_the_dtype_of_each("optimizer-state/from-rank-zero")
keeps_inferred_sizes = saves_optimizer("state-matrix/shards", each_kept(of_inferred_size))
keeps_no_steps = saves_optimizer("state-matrix/shards", without_steps)
keeps_under_ranks = saves_optimizer("state-matrix/shards", named_by_rank)
keeps_nothing_yet = with_functions("optimizer-state/never-stepped", get_optimizer_state_dict=refuses_empty)
resumes_without_moments = loads_optimizer("state-matrix/resumes", begin_anew)
resumes_through_bytes = loads_optimizer("state-matrix/resumes", through_bytes)

#: It loads a state dict.
ALSO_KILLED_BY = {"empty_parts_need_cuda": ("registration/replaced",)}
RAISES = (
    "hybrid_state_is_refused",
    "uneven_state_is_refused",
    "buffers_have_no_mesh",
    "empty_parts_need_cuda",
    "half_in_three_axes",
    "keeps_no_steps",
    "keeps_under_ranks",
    "keeps_nothing_yet",
    "keeps_inferred_sizes",
)
IN_PROCESSES = ("broadcasts_in_two_dtypes",)
