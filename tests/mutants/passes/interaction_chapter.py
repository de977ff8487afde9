"""Implementations that do each feature right, and go wrong where two of them meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.vendor import Implementation
from harness.vendor.torch_fsdp2 import implementation as right
from reference_models.subject import implementation as reference
from tests.mutants import name_of

Options = dict[str, Any]


def where(
    requirement: str, fits: Callable[[Options], bool], under: Callable[[], bool] = lambda: True
) -> Implementation:
    """The reference, which halves gradients in modules sharded with such options, in forwards under such conditions."""

    def fully_shard(module: Any, **options: Any) -> Any:
        assert reference.fully_shard is not None
        sharded = reference.fully_shard(module, **options)
        modules = module if isinstance(module, list) else [module]
        for each in modules if fits(options) else []:
            each.register_forward_hook(lambda *found: halve(*found) if under() else None)
        return sharded

    return replace(reference, name=name_of(requirement), fully_shard=fully_shard)


def beforehand(requirement: str, change: Callable[[nn.Module, Options], object]) -> Implementation:
    """The reference, which first does something to the module, or to the options, that it is given."""

    def fully_shard(module: Any, **options: Any) -> Any:
        assert reference.fully_shard is not None
        for each in module if isinstance(module, list) else [module]:
            change(each, options)
        return reference.fully_shard(module, **options)

    return replace(reference, name=name_of(requirement), fully_shard=fully_shard)


def runs_forward_of_class(module: Any, **options: Any) -> Any:
    """The reference, whose modules have another forward for one call only, whatever a user has put in its place."""
    assert reference.fully_shard is not None
    sharded = reference.fully_shard(module, **options)

    def forget(module: nn.Module, _: Any) -> None:
        vars(module).pop("forward", None)

    for each in module if isinstance(module, list) else [module]:
        each.register_forward_pre_hook(forget)
    return sharded


def ignores_lists(module: nn.Module, options: Options) -> None:
    """Parameters in lists and dicts of parameters are taken for none of the module's."""
    held = [each for each in module.modules() if isinstance(each, (nn.ParameterList, nn.ParameterDict))]
    if held:
        ignored = {parameter for each in held for parameter in each.parameters()}
        options["ignored_params"] = ignored | set(options.get("ignored_params") or ())


def ignores_extra_state(module: nn.Module, options: Options) -> None:
    """What modules have said of themselves in a state, besides parameters and buffers, is not given back."""
    for each in module.modules():
        vars(each)["set_extra_state"] = lambda state: None


def halve(module: Any, args: Any, output: Any) -> Any:
    """The same outputs, of which half the gradient comes back."""
    return (output + output.detach()) / 2 if isinstance(output, Tensor) and output.requires_grad else output


def on_mesh(*shape: int) -> Callable[[Options], bool]:
    """Whether parameters are offloaded, on such a mesh."""
    return lambda options: tuple(options["mesh"].mesh.shape) == shape and "offload_policy" in options


shards_no_lists = beforehand("interactions/two-ranks", ignores_lists)
forgets_other_forwards = replace(reference, name=name_of("interactions/two-ranks"), fully_shard=runs_forward_of_class)
loads_no_extra_state = beforehand("state-dict/extra-state", ignores_extra_state)
one_rank = where("interactions/one-rank", on_mesh(1))
two_ranks = where("interactions/two-ranks", on_mesh(2))
three_ranks = where("interactions/three-ranks", on_mesh(3))
four_ranks = where("interactions/four-ranks", on_mesh(4))
replicas = where("interactions/replicas", on_mesh(2, 2))
thin_meshes = where("interactions/thin-meshes", on_mesh(1, 2))
tensor_parallel = where("interactions/tensor-parallel", on_mesh(2, 1))
two_meshes = where(
    "interactions/parameter-meshes",
    lambda options: options["mesh"].ndim == 2 and {"shard_placement_fn", "offload_policy"} <= options.keys(),
)
columns_in_pairs = where(
    "interactions/columns-in-pairs",
    lambda options: options.get("reshard_after_forward") == 2 and "shard_placement_fn" in options,
)
pairs = where("interactions/state-between-of-pairs", lambda options: options.get("reshard_after_forward") == 2)
unused = where("interactions/unused-and-frozen", lambda options: True)
under_autocast = where("interactions/two-ranks", lambda options: True, lambda: torch.is_autocast_enabled("cpu"))
anything = where("interactions/any", lambda options: True)
recomputes_once = replace(
    reference, name=name_of("interactions/recomputed-for-two-losses"), checkpoint=right.checkpoint
)
hooks_twice_again = replace(reference, name=name_of("interactions/recomputed-with-hooks"), checkpoint=right.checkpoint)

#: What torch's own checkpoint does with a second backward.
RAISES = ("recomputes_once",)
