"""How backward is noticed: an identity in the graph that calls a function when gradients have come through it.

    y = call_in_backward(call, [x])    y is x, [1 2 3 4]
    y.backward(g)                      g, [5 6 7 8], reaches x after call() has returned

A loss that takes sharded parameters itself is noticed by hooks of theirs.

Also what must not be seen by function transforms (``torch.func.jvp``, ``vmap``), inference mode and ``torch.compile``:
they are about the user's mathematics, and gathering and freeing parameters is none of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback

Given = ParamSpec("Given")
Result = TypeVar("Result")


def call_in_backward(call: Callable[[], None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors; ``call`` is made once the gradients of all of them are there, before they go on."""
    kind = _CallInTransform if in_transform() else _Call
    same: tuple[Tensor, ...] = kind.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return same


class _BeforeAdding:
    """A hook of a parameter, which is not saved with it."""

    __torch_unserializable__ = True
    calls: Sequence[Callable[[], None]]

    def __call__(self, gradient: Tensor) -> None:
        for call in self.calls:
            call()


def call_before_adding(parameter: nn.Parameter, *calls: Callable[[], None]) -> None:
    """From now on these calls, and no others, are made before autograd itself adds to a parameter's gradient."""
    hooks = (parameter._backward_hooks or {}).values()
    hook = next((hook for hook in hooks if isinstance(hook, _BeforeAdding)), _BeforeAdding())
    hook.calls = calls
    if hook not in hooks and parameter.requires_grad:
        parameter.register_hook(hook)


def in_transform() -> bool:
    """Whether a function transform is at work."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def unseen_by_modes(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """``function``, run as if no function transform were at work, nor inference mode: what it makes may be trained."""

    @functools.wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if not (in_transform() or torch.is_inference_mode_enabled()):
            return function(*args, **kwargs)
        grad = torch.is_grad_enabled()
        with torch._C._DisableFuncTorch(), torch.inference_mode(False), torch.set_grad_enabled(grad):
            return function(*args, **kwargs)

    return run


def unseen_by_compilers(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """``function``, run as it stands where ``torch.compile`` traces its caller."""

    @functools.cache
    def uncompiled() -> Callable[Given, Result]:
        disabled: Callable[Given, Result] = torch.compiler.disable(function)
        return disabled

    @functools.wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        if torch.compiler.is_dynamo_compiling() or get_eval_frame_callback() is not None:
            return uncompiled()(*args, **kwargs)
        return function(*args, **kwargs)

    return run


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ctx.call()
        return (None, *gradients)


class _CallInTransform(torch.autograd.Function):
    """The same in the form that function transforms ask for, which costs five times as much to call."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.call = inputs[0]

    backward = _Call.backward

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor) -> tuple[Tensor, ...]:
        return call_in_backward(ctx.call, tangents)  # a loss may be of these alone
