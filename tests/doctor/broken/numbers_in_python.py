"""A device written in Python: torch sees it, its operations are CPU's, and its storage cannot be resized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from harness.vendor import Backend

_setup_privateuseone_for_python_backend("npy")


class OnDevice(Tensor):
    """A tensor whose numbers are in one of the CPU."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnDevice:
        """Shape and type are those of the numbers."""
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        return Tensor._make_wrapper_subclass(cls, numbers.shape, **layout, device="npy")  # type: ignore[attr-defined]

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, operator: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        """As for tensors that are made, and belong to no class yet."""
        return on_cpu(operator, *given, **(named or {}))


def on_cpu(operator: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Do what CPU does; only what is copied to the CPU stays there."""
    if named.get("device") == torch.device("cpu"):
        return operator(*_pytree.tree_map(_off, given), **named)
    given, named = _pytree.tree_map(_off, (given, named))
    return _pytree.tree_map(lambda it: OnDevice(it) if isinstance(it, Tensor) else it, operator(*given, **named))


def _off(it: Any) -> Any:
    if isinstance(it, OnDevice):
        return it.numbers
    return torch.device("cpu") if isinstance(it, torch.device) else it


library = torch.library.Library("_", "IMPL")
library.fallback(on_cpu, "PrivateUse1")

backend = Backend(name="npy", device_type="npy", process_group="gloo", ranks=1)
