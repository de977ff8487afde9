"""A device that torch learns of in the rank, as from a plugin that a backend names in ``imports``.

Its tensors have no memory and no kernels; a backward through them runs on a thread for the device. Autograd makes these
threads once in a process, in the first backward that asks for any, for the devices that torch knows of then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _acc
from torch.utils import backend_registration

NAME = "late"


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Another tensor on the device."""
        return empty()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient as it came."""
        return gradient


def empty() -> Tensor:
    """A tensor on the device."""
    tensor: Tensor = _acc.create_empty_tensor((2,), torch.float32)
    return tensor


def device_of_gradient() -> str:
    """Where a gradient is that a backward on the device has computed."""
    x = empty().requires_grad_()
    [gradient] = torch.autograd.grad(_Passed.apply(x), x, empty())
    return str(gradient.device)


backend_registration._setup_privateuseone_for_python_backend(NAME)
