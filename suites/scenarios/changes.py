"""What users do to modules that are there: hooks on blocks, and another forward. Imports no ``torch.distributed``.

All of it changes numbers by powers of two, so that it rounds nothing, wherever between casts it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from suites.scenarios.bodies import ScenarioNet


def hooks(block: nn.Module) -> None:
    """Inputs count twice and outputs half."""
    block.register_forward_pre_hook(lambda _, args: (args[0] * 2, *args[1:]))
    block.register_forward_hook(lambda _, __, output: output / 2)


def backward_hooks(block: nn.Module) -> None:
    """Gradients of outputs count twice."""

    def twice(_: nn.Module, gradients: Any) -> Any:
        return tuple(gradient * 2 for gradient in gradients)

    block.register_full_backward_pre_hook(twice)


def other_forward(block: nn.Module) -> None:
    """The block runs by a function around its forward, as of libraries that patch models."""
    vars(block)["forward"] = partial(doubled, block.forward)


def doubled(forward: Callable[..., Tensor], x: Tensor, *args: Any) -> Tensor:
    """Half of what forward gives for twice the input."""
    return forward(x * 2, *args) / 2


CHANGES: Mapping[str, Callable[[nn.Module], None]] = {
    "hooks before": hooks,
    "hooks after": hooks,
    "backward hooks": backward_hooks,
    "other forward": other_forward,
}
#: What is done once modules are sharded.
AFTERWARDS = ("hooks after", "other forward")


def change(net: ScenarioNet, how: str) -> None:
    """Change the blocks so, each once."""
    for block in dict.fromkeys(net.blocks) if how in CHANGES else ():
        CHANGES[how](block)
