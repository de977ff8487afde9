"""Implementations that cast too much, too little or at the wrong time.

Right is: with param_dtype bfloat16 a weight of 1 + 2**-15 computes as 1 and stays 1 + 2**-15; gradients 1024 and 3
average to 513.5 with reduce_dtype float32, to 512 with bfloat16.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.vendor import Implementation
from reference_models.subject import implementation
from suites.oracle.low_precision import cast
from tests.mutants import name_of
from tests.mutants.making import called_otherwise, inside, modules_of, mutant, right
from tests.mutants.numbers.gathers import GathersOnce

no_policy = right.mixed_precision_policy()
#: Type checkers need not be told that its functions are there.
reference: Any = implementation


def reads(**fields: Any) -> Callable[..., Any]:
    """A ``fully_shard`` that takes some fields of every policy for others."""
    return lambda module, **options: shard_under(module, options, **fields)


def shard_under(module: Any, options: dict[str, Any], **fields: Any) -> Any:
    """Shard with some fields of the policy changed."""
    return right.fully_shard(module, **{**options, "mp_policy": replace(options.get("mp_policy", no_policy), **fields)})


def overridden_otherwise(other: Callable[[Any], Any]) -> Callable[..., Any]:
    """The reference, where policies that override dtypes do so by ``other(override)``."""

    def fully_shard(module: Any, **options: Any) -> Any:
        policy = options.get("mp_policy", no_policy)
        override = getattr(policy, "param_dtype_override_fn", None)
        if override is not None:
            options["mp_policy"] = replace(policy, param_dtype_override_fn=other(override))
        return reference.fully_shard(module, **options)

    return fully_shard


def known_dtypes(override: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What is no dtype of the parameter or the policy counts as none."""

    def known(parameter: Any) -> Any:
        said = override(parameter)
        return said if said == parameter.dtype else None

    return known


def rounds_what_rests(module: Any, **options: Any) -> Any:
    """Keep parameters as they are computed with: 1 + 2**-15 is 1 for good."""
    result = right.fully_shard(module, **options)
    low = options.get("mp_policy", no_policy).param_dtype
    with torch.no_grad():
        for parameter in [p for each in modules_of(module) for p in each.parameters()]:
            if isinstance(parameter, DTensor) and low:
                parameter.to_local().copy_(parameter.to_local().to(low))
    return result


def casts_what_rests(module: Any, **options: Any) -> Any:
    """The same, with the dtype too."""
    result = right.fully_shard(module, **options)
    low = options.get("mp_policy", no_policy).param_dtype
    return result.to(low) if low else result


def casting_inputs(cast: Callable[[Any, Any, torch.dtype], Any], places: slice = slice(None)) -> Callable[..., Any]:
    """A ``fully_shard`` with another way to cast inputs, and that for some modules of a list only."""

    def fully_shard(module: Any, **options: Any) -> Any:
        policy = options.get("mp_policy", no_policy)
        result = shard_under(module, options, cast_forward_inputs=False)
        for each in modules_of(module)[places]:
            if policy.param_dtype and policy.cast_forward_inputs:
                each.register_forward_pre_hook(
                    lambda module, args, low=policy.param_dtype: cast(module, args, low), prepend=True
                )
        return result

    return fully_shard


def cast_direct(module: Any, args: Any, low: torch.dtype) -> Any:
    """Tensors given by place, and nothing that lies within other values."""
    return tuple(arg.to(low) if isinstance(arg, Tensor) and arg.is_floating_point() else arg for arg in args)


def cast_by_kind(kind: type, make: Callable[[Any, torch.dtype], Any]) -> Callable[[Any, Any, torch.dtype], Any]:
    """What is given, where values of one kind are made by ``make(value, low)`` and all others as they should be."""
    return lambda module, args, low: tuple(make(arg, low) if isinstance(arg, kind) else cast(arg, low) for arg in args)


def made_of_items(value: Any, low: torch.dtype) -> Any:
    """One of the same class, whose constructor is given one dict."""
    return type(value)({key: cast(item, low) for key, item in value.items()})


def without_own_fields(value: Any, low: torch.dtype) -> Any:
    """One of the same class, as its constructor makes it of what it takes."""
    return type(value)(**{
        each.name: cast(getattr(value, each.name), low) for each in fields(value) if each.init
    }) if is_dataclass(value) else cast(value, low)  # fmt: skip


def cast_first_time(module: Any, args: Any, low: torch.dtype) -> Any:
    """What a module is given the first time, and not when it is run again."""
    if getattr(module, "ran", False):
        return args
    module.ran = True
    return cast_direct(module, args, low)


def casts_buffers(module: Any, **options: Any) -> Any:
    """Cast floating buffers as if they were parameters."""
    low = options.get("mp_policy", no_policy).param_dtype
    for each in modules_of(module):
        for name, buffer in each.named_buffers():
            if low and buffer.is_floating_point():
                each.get_submodule(name.rpartition(".")[0])._buffers[name.rpartition(".")[2]] = buffer.to(low)
    return right.fully_shard(module, **options)


def makes_all_float(module: Any, **options: Any) -> Any:
    """Turn parameters of other dtypes into float32 first, so that all are alike."""
    for each in inside(module):
        for name, parameter in list(each.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor) and parameter.dtype != torch.float32:
                setattr(each, name, nn.Parameter(parameter.float(), requires_grad=parameter.requires_grad))
    return right.fully_shard(module, **options)


def cuts_off_structures(module: Any) -> None:
    """Rebuild what is not a tensor from detached tensors."""

    def rebuild(module: Any, args: Any, output: Any) -> Any:
        return detached(output)

    module.register_forward_hook(rebuild)


def detached(value: Any) -> Any:
    """A value within which no tensor has a gradient."""
    if hasattr(value, "right"):
        return type(value)(value.left, detached(value.right))
    if isinstance(value, dict):
        return type(value)((key, detached(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(detached(item) for item in value)
    return value.detach() if isinstance(value, Tensor) else value


class Opaque(torch.autograd.Function):
    """Hands a tensor on, and says nothing of derivatives forward."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        """``x`` again."""
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """The gradient again."""
        return gradients[0]


def is_opaque(module: Any) -> None:
    """Put something between that function transforms cannot pass."""
    module.register_forward_hook(lambda module, args, output: Opaque.apply(output))


@dataclass
class LoosePolicy:
    """A policy that is mutable."""

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True


def policies(make: Callable[..., Any], requirement: str) -> Implementation:
    """torch's implementation with another policy."""
    return replace(right, name=name_of(requirement), mixed_precision_policy=make)


low_masters = called_otherwise("precision/exact", rounds_what_rests)
no_reduce_dtype = called_otherwise("precision/reduce-dtype", reads(reduce_dtype=None))
replicas_in_float32 = called_otherwise("precision/hsdp", reads(reduce_dtype=torch.float32))
never_sees_a_step = mutant("precision/general", gather=GathersOnce)
no_param_dtype = called_otherwise("precision/layers", reads(param_dtype=None, reduce_dtype=None))
casts_for_the_first = called_otherwise("precision/groups", casting_inputs(cast_direct, slice(1)))
casts_the_first_time = called_otherwise("precision/recomputed", casting_inputs(cast_first_time))
overrides_nothing = called_otherwise("precision/override", overridden_otherwise(lambda _: None), of=reference)
overrides_quietly = called_otherwise("precision/refuses-override", overridden_otherwise(known_dtypes), of=reference)
low_for_good = called_otherwise("precision/kept-dtypes", casts_what_rests)
leaves_sets = called_otherwise("precision/inputs", casting_inputs(cast_by_kind(set, lambda value, low: value)))
makes_defaults_of_items = called_otherwise("precision/inputs", casting_inputs(cast_by_kind(defaultdict, made_of_items)))
makes_outputs_of_items = called_otherwise("precision/inputs", casting_inputs(cast_by_kind(OrderedDict, made_of_items)))
forgets_own_fields = called_otherwise("precision/own-fields", casting_inputs(cast_by_kind(object, without_own_fields)))
casts_on_the_surface = called_otherwise("precision/inputs", casting_inputs(cast_direct))
always_casts = called_otherwise("precision/uncast-inputs", reads(cast_forward_inputs=True))
no_output_dtype = called_otherwise("precision/outputs", reads(output_dtype=None))
structures_cut_off = mutant("precision/structures-between", cuts_off_structures)
low_buffers = called_otherwise("precision/buffers", casts_buffers)
all_float = called_otherwise("precision/other-dtypes", makes_all_float)
#: A policy that asks for float32 where nothing was asked for.
another_default = policies(
    lambda **fields: right.mixed_precision_policy(**{"reduce_dtype": torch.float32, **fields}), "precision/policy"
)
loose_policy = policies(LoosePolicy, "precision/frozen-policy")
opaque = mutant("precision/transforms", is_opaque)

RAISES = {
    "makes_defaults_of_items",
    "makes_outputs_of_items",
    "casts_for_the_first",
    "casts_the_first_time",
    "structures_cut_off",
    "opaque",
}
IN_PROCESSES = {"opaque"}
ALSO_KILLED_BY = {
    "no_reduce_dtype": ("communication/dtypes",),
    "no_output_dtype": ("partial-groups/output-dtype",),
    "all_float": ("refusals/two-dtypes",),  # or else right
    "low_for_good": ("accumulation/reduce-dtype",),  # gradients of what rests so are added up so
}
