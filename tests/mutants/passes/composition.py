"""Implementations whose functions do not get along on one net, explicitly or by policy.

Right is: what is replicated is whole on every rank with averaged gradients, and all else is sharded as requested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from harness.vendor import Implementation
from reference_models.fsdp.modules import moments
from reference_models.fsdp.state_dict_type import _hooks
from reference_models.subject import implementation as reference
from tests.mutants import name_of
from tests.mutants.making import called_otherwise, mutant, right, sums

assert reference.strategies is not None
right_fully_shard: Callable[..., Any] = right.fully_shard
right_replicate: Callable[..., Any] = right.replicate
assert reference.fully_shard is not None
shard_as_the_reference = reference.fully_shard
strategies = reference.strategies


def replicating(requirement: str, replicate: Callable[..., Any]) -> Implementation:
    """torch's implementation with another ``replicate``."""
    return replace(right, name=name_of(requirement), replicate=replicate)


def strategic(requirement: str, **changed: Any) -> Implementation:
    """The reference with other strategies: torch has none."""
    return replace(reference, name=name_of(requirement), strategies=replace(strategies, **changed))


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` has been applied to a module."""
    return hasattr(module, "unshard")


def own_left_out(module: nn.Module, **options: Any) -> Any:
    """Shard what is in submodules, and forget the module's own parameters where it has both."""
    own = set(module.parameters(recurse=False)) if any(True for _ in module.children()) else set()
    return right_fully_shard(module, **options, ignored_params=own)


def replicate_the_root_alone(module: nn.Module, **options: Any) -> Any:
    """Do nothing to what has a parent, as seen by its not having blocks of blocks."""
    holds_units = any(isinstance(child, nn.Sequential) for child in module.children())
    return right_replicate(module, **options) if holds_units else module


def replicate_own_and_ignore_others(module: nn.Module, **options: Any) -> Any:
    """Leave out the children beside sharded ones."""
    some_are_sharded = any(is_sharded(each) for each in module.modules())
    beside = [child for child in module.children() if some_are_sharded and not any(map(is_sharded, child.modules()))]
    return right_replicate(module, ignored_modules=beside, **options)


def replicate_in_silence(module: nn.Module, **options: Any) -> Any:
    """Leave alone what is sharded, and say nothing."""
    return module if is_sharded(module) else right_replicate(module, **options)


def saves_whole(module: nn.Module) -> None:
    """Put whole tensors into state dicts."""

    def gather(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        for name, value in state.items():
            if isinstance(value, DTensor):
                state[name] = value.full_tensor()

    module.register_state_dict_post_hook(gather)


def shard_instead(read: Callable[[str], str]) -> Callable[..., Any]:
    """Read one strategy as another."""
    return lambda module, policy=None, strategy="FULL_SHARD", mesh=None: strategies.shard(
        module, policy, read(strategy), mesh
    )


def shard_also_what_is_replicated(module: nn.Module, policy: Any = None, *rest: Any, **options: Any) -> Any:
    """Apply to all that a policy chooses, whatever has been applied to it before."""
    assert reference.fully_shard is not None
    for each in reversed(list(module.modules())):
        if policy is not None and policy(each) and each is not module:
            reference.fully_shard(each)
    return strategies.shard(module, None, *rest, **options)


def shard_without_whole_states(module: nn.Module, *rest: Any, **options: Any) -> Any:
    """Let state dicts hold DTensors of what NO_SHARD keeps, until their type is set."""
    strategies.shard(module, *rest, **options)
    for hooks in filter(None, map(_hooks.get, module.modules())):
        while hooks:
            hooks.pop().remove()
    return module


def shard_within_replicas_alone(module: nn.Module, policy: Any = None, strategy: str = "", mesh: Any = None) -> Any:
    """Let replicas be trained apart."""
    hybrid = strategy == "HYBRID_SHARD"
    return strategies.shard(module, policy, "FULL_SHARD" if hybrid else strategy, mesh["shard"] if hybrid else mesh)


def left_out_of_graphs(module: Any, **options: Any) -> Any:
    """Let a compiler trace what gathers and frees, and do none of it there."""
    hooks = {name: _unless_compiled(vars(moments)[name].__wrapped__) for name in ("before_forward", "after_forward")}
    with patch.multiple(moments, **hooks):
        return shard_as_the_reference(module, **options)


def _unless_compiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: None if torch.compiler.is_compiling() else hook(*args)


leaves_own_parameters_alone = called_otherwise("composition/checkpoint-under-root", own_left_out)
sums_under_adam = mutant("composition/adam", sums)
replicates_the_root_alone = replicating("composition/nestings", replicate_the_root_alone)
forgets_the_neighbours = replicating("composition/replicated-rest", replicate_own_and_ignore_others)
#: Leave everything alone.
does_not_replicate = replicating("composition/siblings", lambda module, **options: module)
replicates_in_silence = replicating("composition/refuses-both", replicate_in_silence)
ignores_policies = mutant("composition/casts", mp_policy=right.mixed_precision_policy())  # type: ignore[misc]
saves_whole_tensors = mutant("composition/state-dict", saves_whole)
cuts_under_no_shard = strategic(
    "composition/policy-checkpoint", shard=shard_instead(lambda name: "FULL_SHARD" if name == "NO_SHARD" else name)
)
#: Leave the module as it is.
shards_nothing_by_policy = strategic("composition/policy-replicated-rest", shard=lambda module, *_: module)
shards_replicated_modules = strategic("composition/policy-nestings", shard=shard_also_what_is_replicated)
hybrid_replicas_never_meet = strategic("composition/strategies", shard=shard_within_replicas_alone)
frees_under_shard_grad_op = strategic(
    "composition/strategies-after-forward",
    shard=shard_instead(lambda name: "FULL_SHARD" if name == "SHARD_GRAD_OP" else name),
)
forgets_the_type_of_state_dicts = strategic("composition/strategies-state-dict", state_dict_type=lambda _: "sharded")
does_nothing_in_graphs = replace(reference, name=name_of("composition/compiled"), fully_shard=left_out_of_graphs)
waits_for_a_type = strategic("composition/strategies-state-dict", shard=shard_without_whole_states)

#: Which children are replicated, a list of groups tells as well.
ALSO_KILLED_BY = dict.fromkeys(("replicates_the_root_alone", "does_not_replicate"), ("grouping/replicated-children",))
RAISES = ("shards_replicated_modules", "does_nothing_in_graphs")
