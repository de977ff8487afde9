"""What a script does alike to an unsharded net and to a rank's part of it. Imports no ``torch.distributed``."""

from __future__ import annotations

from typing import Any


class TrainedNet:
    """A net in the middle of a script, with its optimizer; each act is a method that takes what the act names."""

    net: Any
    optimizer: Any

    def step(self, _: str) -> None:
        """A step."""
        self.optimizer.step()

    def drop(self, _: str) -> None:
        """No gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def zero(self, _: str) -> None:
        """Gradients of zero."""
        self.optimizer.zero_grad(set_to_none=False)

    def rate(self, rate: str) -> None:
        """Another learning rate."""
        self.optimizer.param_groups[0]["lr"] = float(rate)

    def freeze(self, module: str) -> None:
        """What is in a module trains no more."""
        self.net.get_submodule(module).requires_grad_(False)

    def thaw(self, module: str) -> None:
        """All that is in a module trains."""
        self.net.get_submodule(module).requires_grad_(True)
