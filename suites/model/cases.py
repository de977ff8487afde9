"""The user's model as a case: the name of its factory, on so many ranks. Imports no ``torch.distributed``.

Saved on two ranks and resumed on three, it must go on as the unsharded model does that never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from suites.model.factory import Model, known, made
from suites.oracle.situation import STEP, Situation
from suites.saving.chains import make_optimizer


@dataclass(frozen=True)
class ModelCase(Situation):
    """``acts`` done to the model that the factory ``model``, ``module:function``, makes.

    Up to one that is ``move``, if there is, they are done on ``saved_on`` ranks.
    """

    model: str
    world_size: int = 2
    reshard_after_forward: bool = True
    acts: tuple[str, ...] = STEP * 2
    saved_on: int = 0

    @property
    def known(self) -> Model:
        """The model as its factory makes it, which is never trained."""
        return known(self.model)

    @property
    def torch_dtype(self) -> torch.dtype:
        """That of its parameters, as the factory makes them."""
        return self.known.dtype

    @property
    def dtype(self) -> str:
        """The same in a word, for records."""
        return str(self.torch_dtype).removeprefix("torch.")

    @property
    def actions(self) -> tuple[str, ...]:
        """All that is done."""
        return self.acts

    @property
    def state_of_rank_zero(self) -> bool:
        """Whether what is loaded comes from rank 0 alone."""
        return "load rank zero" in self.acts

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The net, made anew."""
        net = made(self.model).net.train()
        return net if dtype is None else net.to(dtype)

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What the net gives for a rank's batch."""
        return self.known.run(net, self.number(batch, rank), dtype, device)

    def losses(self, outputs: Any, batch: int, rank: int) -> list[Tensor]:
        """The model's own loss."""
        return [self.known.loss_of(outputs, self.number(batch, rank))]

    def number(self, batch: int, rank: int) -> int:
        """Which of the model's batches a rank has: another for each rank and each forward."""
        return batch * self.world_size + rank

    def optimizer_of(self, named: Mapping[str, Any]) -> torch.optim.Optimizer:
        """Adam, whose steps are smooth in small gradients."""
        return make_optimizer("Adam", named.values())

    def here(self) -> ModelCase:
        """What is done on the ranks that save, before ranks ``move``."""
        return replace(self, world_size=self.saved_on, acts=self.acts[: self.acts.index("move")])
