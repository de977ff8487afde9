"""Training where ranks have values of their own of some parameters, as training of one unsharded net.

That net holds all values of such a parameter in one, of which every rank runs with its own. Two experts, four ranks::

    an expert's weight (3, 3): (2, 3, 3), of which ranks 1 and 3 run with [1], and their gradients there are averaged

Imports no ``torch.distributed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from suites.kit.cases import TrainingCase
from suites.oracle.layout import shard


@dataclass(frozen=True)
class ApartCase(TrainingCase):
    """Rank ``r`` has value ``r % values`` of some parameters, and shares it with all other ranks that have it."""

    @property
    def values(self) -> int:
        """How many there are."""
        return self.world_size

    @property
    def plays_in_own_dtypes(self) -> bool:
        """Wherever all is exact."""
        return self.exact

    def value_of(self, rank: int) -> int:
        """Which of them a rank has."""
        return rank % self.values

    def is_apart(self, name: str) -> bool:
        """Whether a parameter has several values."""
        raise NotImplementedError

    def build_value(self, value: int) -> nn.Sequential:
        """The net of ranks that have this value."""
        raise NotImplementedError

    def cut_of(self, name: str) -> int:
        """The dim along which a parameter is cut."""
        return 0

    def build_in(self, dtype: torch.dtype | None) -> nn.Module:
        """The net with all values."""
        net = self.build_value(0)
        every = [dict(self.build_value(value).named_parameters()) for value in range(self.values)]
        vars(net)["apart"] = [name for name in every[0] if self.is_apart(name)]
        for name in vars(net)["apart"]:
            net.get_parameter(name).data = torch.stack([named[name].detach() for named in every])
        return net.to(dtype or self.torch_dtype)

    def run(self, net: Any, batch: int, rank: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What a net gives for a rank's batch; that with all values is run with the rank's own."""
        inputs = self.inputs(batch, rank).to(device, dtype)
        own = {name: self.whole_of(rank, name, net.get_parameter(name)) for name in vars(net).get("apart", ())}
        return functional_call(net, own, (inputs,)) if own else net(inputs)

    def whole_of(self, rank: int, name: str, full: Tensor) -> Tensor:
        """The value of a parameter that a rank has, whole."""
        return full[self.value_of(rank)] if self.is_apart(name) else full

    def owns(self, rank: int) -> dict[str, Tensor]:
        """The same of all parameters."""
        return {name: self.whole_of(rank, name, full) for name, full in self.full().items()}

    def divisor_of(self, name: str) -> float:
        """As many as have the same value."""
        return self.world_size // self.values if self.is_apart(name) else self.world_size

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of its value."""
        copies = self.values if self.is_apart(name) else 1
        return shard(self.whole_of(rank, name, full), self.world_size // copies, rank // copies, self.cut_of(name))
