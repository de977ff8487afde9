"""Mutants of kinds that the seventeenth round of docs/evidence/independent-bugs.md brought: what users say and hear."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_models.fsdp.modules.state import own_state, states_of
from tests.mutants.hooking import before_forward, instead, outputs
from tests.mutants.making import called_otherwise, mutant, right
from tests.mutants.numbers.finalizing_chapter import FINALIZE, where
from tests.mutants.passes.checkpoint_chapter import recomputing, right_checkpoint
from tests.mutants.passes.composition import strategic, strategies
from tests.mutants.state.reference_chapter import in_groups, of_the_reference

# What is called, set, refused and given.


def by_another_name(module: Any, right: Callable[..., None], enable: bool, **options: Any) -> None:
    """The argument has a name of its own."""
    right(enable, **options)


def and_the_divisor(module: Any, right: Callable[..., None], *args: Any, **options: Any) -> None:
    """What divides gradients is the number of ranks again."""
    right(*args, **options)
    module.set_gradient_divide_factor(float(dist.get_world_size()))


def takes_it_the_second_time(module: Any) -> None:
    """What a module shares with another that is sharded apart is taken for its own when it runs again."""
    if vars(module).setdefault("ran", False) and own_state(module).is_root is None:
        groups = [group for state in states_of(module.modules()) for group in state.groups]
        for parameter in (parameter for group in groups for parameter in group.parameters):
            parameter.origin = nn.Parameter(torch.empty(0))
    vars(module)["ran"] = True


def settles_dtypes_later(module: Any) -> None:
    """What was refused for its dtypes has one of them when it runs again."""
    if vars(module).setdefault("ran", False) and not own_state(module).is_ready:
        module.float()
    vars(module)["ran"] = True


def drops_the_first(module: Any, finalize: Callable[..., Any], **options: Any) -> Any:
    """Whatever is refused, nothing is under way then."""
    try:
        return finalize(**options)
    except RuntimeError:
        own_state(module).tree.queue.awaits = None
        raise


def shortens_lists(module: Any, **options: Any) -> Any:
    """Of a list, modules within others are taken out."""
    result = right.fully_shard(module, **options)
    if isinstance(module, list):
        module[:] = [each for each in module if isinstance(each, right.module_class)]
    return result


def takes_any_shape(module: Any, kind: str) -> None:
    """What is loaded is laid out anew if it has as many numbers."""
    strategies.set_state_dict_type(module, kind)
    load = module.load_state_dict

    def load_flat(state: dict[str, Tensor]) -> Any:
        own = module.state_dict()
        return load({name: value.reshape(own[name].shape) for name, value in state.items()})

    vars(module)["load_state_dict"] = load_flat


def without_false(module: Any, **options: Any) -> Any:
    """Options that are False are not heard."""
    return right_checkpoint(module, **{name: value for name, value in options.items() if value is not False})


# What models do.


def copies_containers(module: nn.Module) -> None:
    """Lists and dicts that forward is given are others."""

    def copied(value: Any) -> Any:
        return type(value)(value) if type(value) in (list, dict) else value

    module.register_forward_pre_hook(
        lambda _, args, named: (tuple(map(copied, args)), {name: copied(value) for name, value in named.items()}),
        with_kwargs=True,
    )


def makes_contiguous(module: nn.Module) -> None:
    """Inputs lie one after the other."""
    module.register_forward_pre_hook(
        lambda _, args: tuple(each.contiguous() if isinstance(each, Tensor) else each for each in args)
    )


def counts_autograd_alone(group: Any, wait: Callable[[], None]) -> None:
    """A gradient is lost of a parameter to which autograd never adds one."""
    wait()
    for parameter in group.parameters:
        form = parameter.unsharded
        if form is not None and form.requires_grad and not hasattr(form, "added"):
            form.added = []
            form.register_hook(partial(_note, form.added))
            parameter.take_gradient = partial(_if_added, parameter, type(parameter).take_gradient)


def _note(added: list[bool], gradient: Tensor | None) -> None:
    if gradient is not None:
        added.append(True)


def _if_added(parameter: Any, take: Callable[[Any], Any]) -> Any:
    if not getattr(parameter.unsharded, "added", True):
        parameter.unsharded.grad = None
    return take(parameter)


class _Doubled(torch.autograd.Function):
    """The same, of whose derivative the gradient is twice as large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return 2 * tangents[0] - tangents[0].detach()


def doubles_slopes(module: Any, output: Any) -> Any:
    """In a transform, outputs are such."""
    in_transform = torch._C._are_functorch_transforms_active()
    return _Doubled.apply(output) if in_transform else output  # type: ignore[no-untyped-call]


calls_it_enable = mutant("arguments/names", instead("set_requires_gradient_sync", by_another_name))
divides_as_at_first = mutant("arguments/others-stay", instead("set_reshard_after_forward", and_the_divisor))
refuses_once = of_the_reference("refusals/each-time", before_forward(takes_it_the_second_time))
takes_dtypes_later = of_the_reference("refusals/two-dtypes-each-time", before_forward(settles_dtypes_later))
forgets_what_is_under_way = where("accumulation/finalized-twice", FINALIZE, drops_the_first)
takes_out_of_lists = called_otherwise("entry/given-list", shortens_lists)
loads_by_count = strategic("composition/full-type-shapes", set_state_dict_type=takes_any_shape)
hears_no_false = recomputing("checkpoint/options", without_false)
gives_other_containers = mutant("autograd/filled", copies_containers)
writes_beside = mutant("precision/written", makes_contiguous)
takes_from_autograd_alone = of_the_reference("autograd/own-gradients", in_groups("wait", counts_autograd_alone))
follows_slopes_twice = mutant("autograd/slopes", outputs(doubles_slopes))
IN_PROCESSES = ("follows_slopes_twice",)
RAISES = ("calls_it_enable", "forgets_what_is_under_way")
