"""Implementations that do each feature right, and go wrong where two of them meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.vendor import Implementation
from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.hooking import instead
from tests.mutants.making import before, given, inside, modules_of, right

Options = dict[str, Any]


def where(
    requirement: str, fits: Callable[[Options], bool], under: Callable[[], bool] = lambda: True
) -> Implementation:
    """The reference, which halves gradients in modules sharded with such options, in forwards under such conditions."""

    def change(module: Any, options: Options) -> None:
        for each in modules_of(module) if fits(options) else []:
            each.register_forward_hook(lambda *found: halve(*found) if under() else None)

    return given(requirement, change, of=reference)


def runs_forward_of_class(module: Any, _: Options) -> None:
    """Another forward runs for one call only, whatever a user has put in its place."""

    def forget(module: nn.Module, _: Any) -> None:
        vars(module).pop("forward", None)

    for each in modules_of(module):
        each.register_forward_pre_hook(forget)


def ignores_lists(module: Any, options: Options) -> None:
    """Parameters in lists and dicts of parameters are taken for none of the module's."""
    held = [each for each in inside(module) if isinstance(each, (nn.ParameterList, nn.ParameterDict))]
    if held:
        ignored = {parameter for each in held for parameter in each.parameters()}
        options["ignored_params"] = ignored | set(options.get("ignored_params") or ())


def ignores_extra_state(module: Any, _: Options) -> None:
    """What modules have said of themselves in a state, besides parameters and buffers, is not given back."""
    for each in inside(module):
        vars(each)["set_extra_state"] = lambda state: None


def halve(module: Any, args: Any, output: Any) -> Any:
    """The same outputs, of which half the gradient comes back."""
    return (output + output.detach()) / 2 if isinstance(output, Tensor) and output.requires_grad else output


def told(setting: str) -> Implementation:
    """The reference, where modules of which this setting is changed pass on half of their gradient."""

    def then_halve(module: Any, setter: Callable[..., None], value: Any, **options: Any) -> None:
        setter(value, **options)
        module.register_forward_hook(halve)

    def change(module: Any, _: Options) -> None:
        for each in modules_of(module):
            instead(setting, then_halve)(each)

    return given("interactions/two-ranks", change, of=reference)


def on_mesh(*shape: int) -> Callable[[Options], bool]:
    """Whether there is a policy for mixed precision, on such a mesh of data."""
    return lambda options: tuple(options["mesh"].mesh.shape) == shape and "mp_policy" in options


shards_no_lists = before("interactions/two-ranks", ignores_lists, of=reference)
forgets_other_forwards = given("interactions/two-ranks", runs_forward_of_class, of=reference)
in_place, finalized = told("set_keep_unsharded_storage"), told("set_manual_backward_finalization")
loads_no_extra_state = before("state-dict/extra-state", ignores_extra_state, of=reference)
one_rank = where("interactions/one-rank", on_mesh(1))
two_ranks = where("interactions/two-ranks", on_mesh(2))
three_ranks = where("interactions/three-ranks", on_mesh(3))
four_ranks = where("interactions/four-ranks", on_mesh(4))
replicas = where("interactions/replicas", on_mesh(2, 2))
thin_meshes = where("interactions/thin-meshes", on_mesh(1, 2))
tensor_parallel = where("interactions/tensor-parallel", on_mesh(1))
two_meshes = where(
    "interactions/parameter-meshes",
    lambda options: options["mesh"].ndim == 2 and {"shard_placement_fn", "mp_policy"} <= options.keys(),
)
columns_in_pairs = where(
    "interactions/columns-in-pairs",
    lambda options: options.get("reshard_after_forward") == 2 and "shard_placement_fn" in options,
)
pairs = where("interactions/state-between-of-pairs", lambda options: options.get("reshard_after_forward") == 2)
unused = where("interactions/unused-and-frozen", lambda options: True)
unused_of_two, outputs_again = (
    where(f"interactions/{requirement}", lambda options: True)
    for requirement in ("unused-in-tensor-parallel", "outputs-of-recomputed")
)
under_autocast = where("interactions/two-ranks", lambda options: True, lambda: torch.is_autocast_enabled("cpu"))
anything = where("interactions/any", lambda options: True)
#: torch's own recomputation goes back once, and runs hooks that there were twice.
recomputes_once, runs_hooks_again = (
    replace(reference, name=name_of(f"interactions/{requirement}"), checkpoint=right.checkpoint)
    for requirement in ("recomputed-for-two-losses", "recomputed-with-hooks")
)

#: What torch's own checkpoint does with a second backward, and clipping with gradients of which some are not sharded.
RAISES = ("recomputes_once", "shards_no_lists")
