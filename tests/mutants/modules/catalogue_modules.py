"""Implementations with published defects: by gathers, hooks and options, of what is known when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.collective_trace.torch_names import all_gather
from tests.mutants.hooking import before_forward, instead
from tests.mutants.making import Gather, Reduction, called_otherwise, changed, defect, given, modules_of, mutant, right
from tests.mutants.modules.reshard_chapter import drops_empty_gradients
from tests.mutants.numbers.catalogue_reductions import around_reductions
from tests.mutants.numbers.gathers import now_and_then
from tests.mutants.numbers.reductions import own_part
from tests.mutants.passes.autograd_chapter import hooks
from tests.mutants.passes.communication import without

# What is gathered.


class HasNoCopyIn(Gather):
    """An operation that copies parameters together was never written for the device."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        raise NotImplementedError(f"fsdp::all_gather_copy_in is not implemented for {device.type}")


class GathersFromEverybody(Gather):
    """Gathers from all ranks, whatever the group, and takes the first."""

    def gather(self, output: Tensor, input: Tensor, group: Any) -> None:
        whole = input.new_empty(dist.get_world_size() * input.numel())
        all_gather(whole, input.clone())
        output.copy_(whole[: output.numel()])


def on_few_devices(module: Any, **options: Any) -> Any:
    """A list of device types decides who may have streams, and others have an error."""
    if options["mesh"].device_type not in ("cuda", "xpu", "hpu", "mtia"):
        raise RuntimeError(f"device type {options['mesh'].device_type} has no stream to gather on")
    return right.fully_shard(module, **options)


# What is sharded together.


def refused_if(fits: Callable[[list[nn.Parameter]], bool], words: str) -> Callable[..., Any]:
    """A ``fully_shard`` that refuses parameters at their places if they are such."""

    def fully_shard(module: Any, **options: Any) -> Any:
        owners = dict.fromkeys(owner for top in modules_of(module) for owner in top.modules())
        if fits([p for owner in owners for p in owner._parameters.values() if p is not None]):
            raise AssertionError(words)
        return right.fully_shard(module, **options)

    return fully_shard


def of_two_dtypes(parameters: list[nn.Parameter]) -> bool:
    """Frozen and trained ones may have dtypes of their own."""
    return len({parameter.dtype for parameter in parameters if not isinstance(parameter, DTensor)}) > 1


def at_two_places(parameters: list[nn.Parameter]) -> bool:
    """One that was moved from its first place is not found at the second."""
    return len({id(parameter) for parameter in parameters}) < len(parameters)


def left_alone_on_one_rank(module: Any, **options: Any) -> Any:
    """Where one rank has all shards there is nothing to do, and nothing is done."""
    return module if options["mesh"].size() == 1 else right.fully_shard(module, **options)


# What runs when.


def reshards_when_run_again(module: Any) -> None:
    """Frees after a forward that runs in backward, and gathers again for the backward right behind it."""

    def again(module: Any, *_: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            module.reshard()
            module.unshard()

    module.register_forward_hook(again)


class ReducesLater(Reduction):
    """What backward is given is this rank's own part; what it should be is kept for later."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        reduced = torch.empty_like(output)
        super().reduce(reduced, input, group, op)
        output.copy_(own_part(input, group))
        self.waiting.append((output, reduced))


def runs_hooks_first(module: Any) -> None:
    """Hooks of parameters run before the reduction is over, and gradients are right when backward returns."""
    reduction = ReducesLater()

    def finish(group: Any, right_method: Callable[[], None]) -> None:
        right_method()
        for output, reduced in reduction.waiting:
            output.copy_(reduced)
        reduction.waiting.clear()

    module.set_custom_reduce_scatter(reduction)
    around_reductions(finish)(module)


def forgets_it_is_sharded(module: Any, right_method: Any, dtype: torch.dtype) -> Any:
    """What was moved and back is taken for whole from then on: no update of a shard reaches it."""
    moved = all(parameter.dtype == dtype for parameter in module.parameters())
    right_method(dtype)
    vars(module)["conversions"] = vars(module).get("conversions", 0) + (not moved)
    if vars(module)["conversions"] == 2:
        module.set_reshard_after_forward(False)
        module.set_reshard_after_backward(False)
    return module


class Saved:
    """An activation that was moved elsewhere, and is deleted too early from the second step on."""

    def __init__(self, tensor: Tensor, early: bool) -> None:
        self.tensor, self.early = tensor, early

    def back(self) -> Tensor:
        """What backward is given."""
        gone = self.early and self.tensor.is_floating_point()
        return torch.full_like(self.tensor, torch.nan) if gone else self.tensor


def deletes_activations(module: Any, options: dict[str, Any]) -> None:
    """Where parameters rest on the CPU, what autograd saves is moved there, too."""
    if options.get("offload_policy") is None or not isinstance(module, nn.Module):
        return
    forward, runs = module.forward, [0]

    def run(*args: Any, **more: Any) -> Any:
        runs[0] += torch.is_grad_enabled()
        early = runs[0] > 1
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: Saved(tensor, early), Saved.back):
            return forward(*args, **more)

    object.__setattr__(module, "forward", run)


#: A bucket is freed while another stream reads it: the second half is gone.
frees_what_is_read = mutant("parity/exact", now_and_then(lambda output: output[output.numel() // 2 :].fill_(torch.nan)))
has_no_copy_in = mutant("parity/exact", gather=HasNoCopyIn)
gathers_from_everybody = mutant("tensor-parallel/exact", gather=GathersFromEverybody)
knows_few_devices = called_otherwise("parity/exact", on_few_devices)
refuses_two_dtypes = called_otherwise("parameters/other-dtypes", refused_if(of_two_dtypes, "expected one dtype"))
refuses_shared = called_otherwise("sharding/shared", refused_if(at_two_places, "expected a parameter at its place"))
leaves_one_rank_alone = called_otherwise("sharding/layout", left_alone_on_one_rank)


@defect("generated/frozen", before_forward)
def frozen_stay_whole(module: Any) -> None:
    """What trains nothing has no backward that would reshard it."""
    own = [p for p in module.parameters() if not isinstance(p, DTensor) or p.device_mesh.size() > 1]
    if own and not any(parameter.requires_grad for parameter in own):
        module.set_reshard_after_forward(False, recurse=False)
        module.set_reshard_after_backward(False, recurse=False)


#: Options that the caller set, and that were not handed on.
options_never_arrive = changed(
    "reshard/false", lambda options: {name: value for name, value in options.items() if name == "mesh"}
)
reshards_again = mutant("checkpoint/no-more-collectives", reshards_when_run_again)
hooks_never_run = mutant("autograd/post-accumulate-hooks", hooks(lambda hook, parameter: None))
hooks_run_first = mutant("autograd/post-accumulate-hooks", runs_hooks_first)
no_divide_factor = without("reduction/divide-factor", "set_gradient_divide_factor")
stale_once_moved = mutant("registration/converted-and-back", instead("to", forgets_it_is_sharded))
activations_are_deleted = given("offload/exact", deletes_activations)
nothing_to_unscale = mutant("clipping/scaler", drops_empty_gradients)

#: Where nothing is done for one rank, nothing is refused either.
ALSO_KILLED_BY = {"leaves_one_rank_alone": ("arguments/mesh-of-three-axes",)}
RAISES = ("has_no_copy_in", "knows_few_devices", "refuses_two_dtypes", "refuses_shared", "nothing_to_unscale")
