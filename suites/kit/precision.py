"""Explicit mixed precision: compute in one dtype, reduce in another, update in the parameters' own.

A weight of 1 + 2**-15 in float32 computes as 1 in bfloat16. Gradients 1024 and 3 of two ranks average to 513.5 when
they are reduced in float32, to 512 when in bfloat16, where their sum is 1024; that is then taken off 1 + 2**-15, not
off 1.

[Note: exact cases in low precision]
Weights are ±1, inputs and loss weights integers of at most 2, batches of at most 2, dims of at most 3; a net is two
linear layers, or one MLP of at most 6 hidden units. So activations are integers of at most 43, and gradients of at most
28; their sum over four ranks is at most 112, and bfloat16 holds integers up to 256: no sum is rounded, in any order.

What low precision would lose is below that: where the param_dtype is low, weights are 2**-15 above ±1, and the learning
rate is 2**-19. In two steps a weight moves by at most 2 · 28 · 2**-19 < 2**-13, so that it is within 2**-12 of ±1,
which float16 and bfloat16 round to ±1; while float32 keeps every step, a multiple of 2**-21. What computes in float32
would see these steps in the second, and its gradients would no longer be integers: there is only one then.

[Note: rounding once]
One rank's inputs are 2**11 times as large, one other rank's are not, all others' are zero, and there are no biases.
Then gradients are a · 2**11, b and 0, with a and b integers of at most 28: exact in any dtype, but their sum is not.
There is one sum to round, of a · 2**11 and b; all others are with zero. So the result depends on the dtype and not on
the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suites.kit.cases import TrainingCase
from suites.oracle.low_precision import compute_in

FRACTION = 2.0**-15
SCALE = 2.0**11


@dataclass(frozen=True)
class PrecisionCase(TrainingCase):
    """Training that computes in ``param_dtype`` and reduces in ``reduce_dtype``; None leaves what there is.

    The net is sharded in the dtype ``born``, and has its own when training starts; None is its own. ``scales`` are what
    inputs are multiplied by, of one rank after the other, and then of further batches; of more, all over again.
    """

    param_dtype: str | None = None
    reduce_dtype: str | None = None
    born: str | None = None
    scales: tuple[float, ...] = ()

    @property
    def learning_rate(self) -> float:  # type: ignore[override]
        """Exact cases step by what only full precision keeps; others so that low precision sees it."""
        return 2.0**-19 if self.exact else 0.125

    @property
    def compute(self) -> torch.dtype:
        """What forward and backward run in."""
        return dtype_of(self.param_dtype) or self.torch_dtype

    @property
    def policy(self) -> dict[str, torch.dtype]:
        """The dtypes that are asked for."""
        return asked(self.param_dtype, self.reduce_dtype)

    def prepared(self, net: nn.Module, working: bool) -> nn.Module:
        """The unsharded net in the policy's dtypes if ``working``."""
        compute_in(self.policy if working else {}, net, [""])
        return net

    @property
    def is_low(self) -> bool:
        """Whether what is computed in holds less than the parameters."""
        return torch.finfo(self.compute).eps > torch.finfo(self.torch_dtype).eps

    @property
    def reduction(self) -> torch.dtype:
        """What gradients are summed in."""
        return dtype_of(self.reduce_dtype) or self.compute

    def inputs(self, step: int, rank: int) -> Tensor:
        """The batch of one rank in one step, scaled."""
        given = super().inputs(step, rank)
        return given * self.scales[(step * self.world_size + rank) % len(self.scales)] if self.scales else given

    def build(self) -> nn.Sequential:
        """The net; exact ones have weights of ±1, and what the param_dtype will not hold."""
        net = super().build()
        if self.exact:
            fraction = FRACTION if self.is_low and not self.born else 0.0
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.copy_(parameter.sign() + fraction)
        return net


def asked(param_dtype: str | None, reduce_dtype: str | None) -> dict[str, torch.dtype]:
    """What a policy is given to compute in one dtype and reduce in another; None leaves what there is."""
    dtypes = {"param_dtype": dtype_of(param_dtype), "reduce_dtype": dtype_of(reduce_dtype)}
    return {name: dtype for name, dtype in dtypes.items() if dtype is not None}


def dtype_of(name: str | None) -> torch.dtype | None:
    """``"bfloat16"`` as torch has it."""
    found = getattr(torch, name) if name else None
    assert found is None or isinstance(found, torch.dtype)
    return found
