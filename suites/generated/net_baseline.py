"""Any net without sharding: what training it would give without any ranks. Imports no ``torch.distributed``.

Two ranks with gradients 1 and 3 give 2; where only the first rank ran a module, 1 and none give 0.5. Buffers stay each
rank's own: ranks that see means of 1 and 3 have running means of 0.1 and 0.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from suites.generated.net_cases import GeneratedCase


@dataclass(frozen=True)
class NetStep:
    """One step: losses by rank and micro-batch, full gradients (None where no rank has one) and parameters by name.

    ``buffers`` are by rank. ``magnitudes`` is the mean over ranks of the sums of gradients' absolute values, where any.
    """

    losses: list[list[Tensor]]
    gradients: dict[str, Tensor | None]
    parameters: dict[str, Tensor]
    buffers: list[dict[str, Tensor]]
    magnitudes: dict[str, Tensor]


def train(case: GeneratedCase, dtype: torch.dtype | None = None) -> list[NetStep]:
    """Train the case's net on all ranks' batches, in ``dtype`` instead of its own if there is one."""
    with one_thread():
        net = case.build(dtype)
        buffers = [copies(net.named_buffers()) for _ in range(case.world_size)]
        return [_step(net, buffers, case, step, dtype or case.torch_dtype) for step in range(case.steps)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Have operations run on the caller's thread alone: as on ranks, and on a busy machine ten times as fast."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _step(
    net: nn.Module, buffers: list[dict[str, Tensor]], case: GeneratedCase, step: int, dtype: torch.dtype
) -> NetStep:
    losses: list[list[Tensor]] = []
    found: dict[str, list[Tensor]] = {name: [] for name, _ in net.named_parameters()}
    for rank in range(case.world_size):
        for name, buffer in net.named_buffers():
            buffer.copy_(buffers[rank][name])
        runs = [_backward(net, case, step, rank, micro, dtype) for micro in range(len(case.reduced))]
        losses.append([loss for loss, _ in runs])
        for name, gradient in (pair for _, gradients in runs for pair in gradients.items()):
            found[name].append(gradient / case.world_size)
        buffers[rank] = copies(net.named_buffers())
    gradients = {name: torch.stack(each).sum(0) if each else None for name, each in found.items()}
    sizes = {name: torch.stack(each).abs().sum(0) for name, each in found.items() if each}
    descend(net, gradients, case.learning_rate)
    return NetStep(losses, gradients, copies(net.named_parameters()), list(buffers), sizes)


def _backward(
    net: nn.Module, case: GeneratedCase, step: int, rank: int, micro: int, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """One micro-batch of one rank: its loss, and the gradients of what it used."""
    loss = case.loss(net(**case.inputs(step, rank, micro, dtype)), step, rank, micro)
    named = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    used = {name: gradient for name, gradient in zip(named, gradients, strict=True) if gradient is not None}
    return loss.detach(), used


def descend(net: nn.Module, gradients: Mapping[str, Tensor | None], rate: float) -> None:
    """An explicit step of plain SGD."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            gradient = gradients[name]
            if gradient is not None:
                parameter.sub_(rate * gradient)


def copies(named: Any) -> dict[str, Tensor]:
    """Tensors by name, copied."""
    return {name: tensor.detach().clone() for name, tensor in named}


def dtypes(case: GeneratedCase) -> dict[str, str]:
    """The dtype of every parameter and buffer, which training does not change."""
    net = case.build()
    return {name: str(tensor.dtype) for name, tensor in [*net.named_parameters(), *net.named_buffers()]}


def on_rank(case: GeneratedCase, steps: list[NetStep], rank: int) -> list[dict[str, Any]]:
    """What one rank must see of it: its own losses and buffers, and its parts of gradients and parameters."""

    def parts(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        return {name: None if tensor is None else case.part(rank, tensor) for name, tensor in tensors.items()}

    return [
        {
            "losses": step.losses[rank],
            "gradients": parts(step.gradients),
            "parameters": parts(step.parameters),
            "buffers": step.buffers[rank],
        }
        for step in steps
    ]


def zeros_for_none(steps: list[NetStep], case: GeneratedCase) -> list[NetStep]:
    """The same, where parameters that train and that no rank used have gradients of zero."""
    trained = {name for name, parameter in case.build().named_parameters() if parameter.requires_grad}

    def filled(step: NetStep) -> NetStep:
        unused = [name for name in trained if step.gradients[name] is None]
        zeros = {name: torch.zeros_like(step.parameters[name]) for name in unused}
        return replace(step, gradients={**step.gradients, **zeros})

    return [filled(step) for step in steps]
