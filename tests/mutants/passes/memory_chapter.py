"""Implementations that hold more than they may: copies, views of what is whole, blocks and gradients of everything.

Right is, on two ranks: half of everything at rest, and in passes a few blocks and gradients besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.hooking import instead
from tests.mutants.making import Reduction, adopt, given, mutant, reduced_then, right
from tests.mutants.modules.reshard_chapter import is_int
from tests.mutants.passes.prefetch_chapter import reduces_at_the_end

#: What keeps nets alive.
_known: list[nn.Module] = []


def is_block(module: nn.Module) -> bool:
    """Whether nothing is in a module; the root of the nets of this chapter has blocks in it."""
    return not list(module.children())


def shards_experts_by_views(module: Any) -> None:
    """Of a parameter whose mesh has not all ranks, a rank's rows are a view of all of it."""
    _view(module, lambda parameter: parameter.device_mesh.size() < dist.get_world_size())


def _view(module: nn.Module, which: Callable[[DTensor], bool]) -> None:
    made: dict[nn.Parameter, nn.Parameter] = {}
    for inner in module.modules():
        for key, parameter in inner.named_parameters(recurse=False):
            if isinstance(parameter, DTensor) and which(parameter):
                if parameter not in made:
                    made[parameter] = _as_a_view(parameter)
                setattr(inner, key, made[parameter])
    adopt(module, made)


@torch.no_grad()
def _as_a_view(parameter: DTensor) -> nn.Parameter:
    part, mesh = parameter.to_local(), parameter.device_mesh
    whole = torch.zeros(mesh.size(-1) * max(part.numel(), 1), dtype=part.dtype, device=part.device)
    view = whole[: part.numel()].view(part.shape).copy_(part)
    same = DTensor.from_local(
        view, mesh, parameter.placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return nn.Parameter(same, requires_grad=parameter.requires_grad)


def gathers_all_at_the_start(module: Any) -> None:
    """The root gathers everything before it runs."""
    if not is_block(module):
        module.set_modules_to_forward_prefetch(_blocks(module))


def gathers_all_for_backward(module: Any) -> None:
    """The last block gathers all others ahead of its backward."""
    if not is_block(module) and (blocks := _blocks(module)):
        blocks[-1].set_modules_to_backward_prefetch(blocks[-2::-1])


def _blocks(module: nn.Module) -> list[Any]:
    return [each for each in module.children() if hasattr(each, "unshard")]


def keeps_a_copy(module: Any) -> None:
    """Of what a block ran with, a copy waits for the next time."""
    if is_block(module):
        module.register_forward_pre_hook(lambda module, _: vars(module).update(copy=_copies(module)))


def _copies(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters() if not isinstance(parameter, DTensor)]


class KeepsWhatItReduced(Reduction):
    """Has whole gradients at hand until there are others."""

    def reduce(self, output: Tensor, input: Tensor, group: Any, op: Any) -> None:
        super().reduce(output, input, group, op)
        self.kept = input


def keeps_each_quiet_gradient(module: Any, setter: Callable[..., None], syncs: bool, **options: Any) -> None:
    """Of passes that are not reduced, each one's gradients are kept by themselves."""
    setter(syncs, **options)
    for block in module.modules():
        kept = vars(block).setdefault("quiet", [])
        kept.clear() if syncs else None
        if is_block(block) and not vars(block).get("keeps"):
            vars(block)["keeps"] = block.register_full_backward_hook(lambda block, *_: _keep(block))


def _keep(block: nn.Module) -> None:
    vars(block)["quiet"] += [torch.zeros_like(p) for p in block.parameters() if not isinstance(p, DTensor)]


def replicas_keep_copies(module: Any, options: dict[str, Any]) -> None:
    """Where there are replicas, copies of blocks are kept."""
    if options["mesh"].ndim == 2:
        keeps_a_copy(module)


def keeps_rows_it_computed_with(module: Any, options: dict[str, Any]) -> None:
    """Where computing has a dtype of its own, a rank's rows are kept in it, too."""
    policy = options.get("mp_policy")
    if policy is not None and policy.param_dtype is not None:
        rows = [p.to_local().to(policy.param_dtype) for p in module.parameters() if isinstance(p, DTensor)]
        vars(module)["rows"] = rows


def keeps_sums_of_replicas(module: Any, options: dict[str, Any]) -> None:
    """Where reducing has a dtype of its own, what was summed in it over replicas is kept until the next backward."""
    if "mp_policy" in options and options["mesh"].ndim == 2:
        reduced_then(lambda output, group: vars(module).update(sums=output))(module)


def keeps_copies_for_groups(module: Any, options: dict[str, Any]) -> None:
    """Where parameters are to be kept in smaller groups, all of them are kept besides."""
    if is_int(options.get("reshard_after_forward")):
        keeps_a_copy(module)


def sums_of_everything(module: Any, setter: Callable[..., None], spans: bool, **options: Any) -> None:
    """Sums of one replica are held in full: nothing is scattered until all replicas are asked."""
    module.set_requires_gradient_sync(spans, **options)
    setter(spans, **options)


def leaves_a_gather_behind(module: Any) -> None:
    """Each forward leaves a few bytes of what it gathered."""
    left: list[Tensor] = []
    module.register_forward_hook(lambda module, *_: left.append(torch.zeros(4)))


def leaves_experts_behind(module: Any) -> None:
    """Each forward of a module with parameters on several meshes leaves a few bytes of what it gathered."""
    if len({parameter.device_mesh for parameter in module.parameters()}) > 1:
        leaves_a_gather_behind(module)


def holds_failed_steps(module: Any, setter: Callable[..., None]) -> None:
    """What a reset drops is kept."""
    vars(module).setdefault("dropped", []).append(torch.zeros(4))
    setter()


#: A rank's rows are a view of the whole parameter, all of which stays.
holds_views_of_everything = mutant("memory/at-rest", lambda module: _view(module, lambda parameter: True))
gathers_everything_first = mutant("memory/in-forward", gathers_all_at_the_start)
keeps_copies = mutant("memory/after-forward", keeps_a_copy)
gathers_everything_again = mutant("memory/in-backward", gathers_all_for_backward)
reduces_everything_last = mutant("memory/in-backward", reduces_at_the_end)
keeps_what_it_reduced = mutant("memory/after-backward", reduce=KeepsWhatItReduced)
keeps_quiet_gradients = mutant("memory/accumulation", instead("set_requires_gradient_sync", keeps_each_quiet_gradient))
keeps_copies_on_replicas = given("memory/replicas", replicas_keep_copies)
keeps_casts = given("memory/precision", keeps_rows_it_computed_with)
keeps_wide_sums = given("memory/replicas-precision", keeps_sums_of_replicas, of=reference)
keeps_copies_in_groups = given("memory/groups", keeps_copies_for_groups)
sums_in_full = mutant("memory/replicas-quiet", instead("set_requires_all_reduce", sums_of_everything))
recomputes_nothing = replace(right, name=name_of("memory/recomputed"), checkpoint=lambda module, **_: module)
leaves_gathers = mutant("memory/steps", leaves_a_gather_behind)
holds_views_of_experts = mutant("memory/parameter-meshes", shards_experts_by_views)
leaves_experts = mutant("memory/parameter-meshes-steps", leaves_experts_behind)
keeps_failed_steps = mutant("memory/failures", instead("reset_iter_state", holds_failed_steps))
#: Whatever was sharded is known, and held.
forgets_no_net = mutant("memory/deleted", lambda module: _known.append(module))

ALSO_KILLED_BY = {
    "reduces_everything_last": ("generated/",),  # what is no more unsharded when backward is over is never reduced
    "recomputes_nothing": ("checkpoint/contexts",),
}
