"""Routes on which a net, the first block, learns while another, the last, runs without gradients and is changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suites.passes.pass_routes import roots_apart, roots_that_share
from suites.passes.passes import Found, Pass, Route


def beside_a_teacher(p: Pass) -> Found:
    """The first block learns while the last, which has run without gradients before it, is changed in each step."""
    student, teacher = p.net.blocks
    with torch.no_grad():
        taught = teacher(p.inputs())
    loss = p.loss(student(p.inputs()))
    loss.backward()
    negate(teacher)
    yield {"loss": loss.detach(), "taught": taught}


def taught_in_backward(p: Pass) -> Found:
    """The same, with the last running while backward goes through the first."""
    student, teacher = p.net.blocks
    taught: list[Tensor] = []

    def ask(_: Tensor) -> None:
        with torch.no_grad():
            taught.append(teacher(p.inputs()))

    outputs = student(p.inputs())
    outputs.register_hook(ask)
    loss = p.loss(outputs)
    loss.backward()
    negate(teacher)
    yield {"loss": loss.detach(), "taught": taught}


@torch.no_grad()
def negate(module: nn.Module) -> None:
    """Change all parameters."""
    for parameter in module.parameters():
        parameter.neg_()


BESIDE = Route(beside_a_teacher, actions=("walk first",), spread=roots_that_share)
IN_BACKWARD = Route(taught_in_backward, actions=("walk first",), spread=roots_apart)
