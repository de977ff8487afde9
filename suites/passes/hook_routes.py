"""Routes with hooks of autograd's, with optimizers that step in them, and with resets after exceptions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from suites.kit.cases import TrainingCase
from suites.oracle.layout import local, own
from suites.passes.autograd_routes import ALONE, ON
from suites.passes.passes import Found, Pass, Route


def hooked(p: Pass) -> Found:
    """Hooks after gradients: how often each is called in a backward, and whether it sees the gradient.

    Every other parameter has one in every other step. The second backward adds to what the first one gives.
    """
    seen: dict[str, list[Tensor]] = {}

    def note(name: str, parameter: Tensor) -> None:
        if parameter.grad is None:
            raise ValueError(f"expected the hook of {name} to see a gradient, got none")
        seen.setdefault(name, []).append(own(parameter.grad).clone())

    named = list(p.net.named_parameters())[p.batch % 2 :: 2]
    handles = [q.register_post_accumulate_grad_hook(lambda q, name=n: note(name, q)) for n, q in named]
    for salt in range(2):
        seen.clear()
        p.loss(p.net(p.inputs(salt)), salt).backward()
        if salt:
            for handle in handles:
                handle.remove()
        grads = {name: own(q.grad).clone() for name, q in p.net.named_parameters() if q.grad is not None}
        yield {
            "calls": {name: len(seen.get(name, [])) for name, _ in named},
            "the gradient": {name: [torch.equal(one, grads[name]) for one in seen.get(name, [])] for name, _ in named},
        }


def negated_in_hooks(p: Pass) -> Found:
    """Hooks after gradients negate the parameters that the net has then."""

    def negate(name: str) -> None:
        with torch.no_grad():
            dict(p.net.named_parameters())[name].neg_()

    handles = [
        q.register_post_accumulate_grad_hook(lambda _, name=n: negate(name)) for n, q in p.net.named_parameters()
    ]
    loss = p.loss(p.net(p.inputs()))
    loss.backward()
    for handle in handles:
        handle.remove()
    yield {"loss": loss.detach()}


def sizes_in_hooks(p: Pass) -> dict[str, list[Any]]:
    """For each call of each block's full backward hook in a pass, the sizes of parameters that it finds registered."""
    found: dict[str, list[Any]] = {name: [] for name, _ in p.net.blocks.named_children()}

    def note(name: str, module: nn.Module) -> None:
        found[name].append([list(local(parameter).shape) for parameter in module.parameters()])

    blocks = p.net.blocks.named_children()
    handles = [block.register_full_backward_hook(lambda m, *_, name=n: note(name, m)) for n, block in blocks]
    p.loss(p.net(p.inputs().requires_grad_())).backward()
    for handle in handles:
        handle.remove()
    return found


def backward_hooks(p: Pass) -> Found:
    """How often each is called."""
    yield {"calls": {name: len(sizes) for name, sizes in sizes_in_hooks(p).items()}}


def full_in_backward_hooks(p: Pass) -> Found:
    """What each call finds."""
    yield {"sizes": sizes_in_hooks(p)}


def reset_blocks(p: Pass) -> Found:
    """A pass after blocks were reset, which may have been refused."""
    for block in p.net.blocks:
        with suppress(Exception):
            p.tell(block, "reset_iter_state")
    loss = p.loss(p.net(p.inputs()))
    loss.backward()
    yield {"loss": loss.detach()}


def broken(case: TrainingCase, step: int) -> tuple[str, ...]:
    """A pass that fails and is reset, and then one that does not."""
    return (f"fail blocks.{case.how}", "drop", "forward", "backward")


def adam(case: TrainingCase, parameters: Any) -> torch.optim.Optimizer:
    """Adam that goes over parameters one by one."""
    return torch.optim.Adam(parameters, lr=case.learning_rate, foreach=False)


HOOKED = Route(hooked, actions=(*ALONE, ON))
NEGATED = Route(negated_in_hooks, actions=ALONE)
BACKWARD_HOOKS = Route(backward_hooks, actions=ALONE)
FULL_IN_BACKWARD_HOOKS = Route(full_in_backward_hooks, actions=ALONE)
RESET_BLOCKS = Route(reset_blocks, actions=ALONE)
BROKEN = Route(actions=broken)
#: Every step is at half the rate of the one before.
ADAM = Route(actions=("vary", "forward", "backward"), optimizer=adam)
ADAM_IN_BACKWARD = replace(ADAM, in_backward=True)
