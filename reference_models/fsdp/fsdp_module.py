"""What a module gains by ``fully_shard``: its methods to gather and to free, and those of ``setters.py``.

Two ranks, an ``FSDPLinear`` with weight rows [1 2 3 4]; rank 0::

    unshard()    weight is a plain parameter [1 2 3 4]
    reshard()    weight is a DTensor with local [1 2] again
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import nn

from reference_models.fsdp.errors import NotAllowed
from reference_models.fsdp.modules.finalizing import GradientReductionHandle
from reference_models.fsdp.modules.moments import after_forward, before_forward
from reference_models.fsdp.modules.state import ModuleState, own_state
from reference_models.fsdp.setters import OptionSetters


class UnshardHandle:
    """What ``unshard(async_op=True)`` returns; ``wait`` makes the unsharded parameters usable."""

    def __init__(self, state: ModuleState) -> None:
        self._state = state

    def wait(self) -> None:
        """Wait for the gather; may be called again."""
        for group in self._state.groups:
            group.wait()


class FSDPModule(OptionSetters):
    """What every sharded module is, besides what it was.

    Constructing a sharded class, as slicing a ``Sequential`` does, gives the class that it was.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An instance of the class that was sharded."""
        original: Any = cls.__bases__[1]  # see _class_of in apply.py
        return original(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        """Refuse."""
        raise NotAllowed("FSDP does not support deepcopy: copy the module before it is sharded")

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Change the sharded parameters, as ``to`` and its like do."""
        self.reshard()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather this module's own parameters and register them; with ``async_op`` when the handle is waited for."""
        state = own_state(self)
        state.start_unsharding(async_op)
        handle = UnshardHandle(state)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Register this module's own sharded parameters and free the unsharded ones."""
        own_state(self).reshard()

    def finalize_backward(self, *, async_op: bool = False) -> GradientReductionHandle | None:
        """Reduce what backwards have put off, and wait for all gradients; with ``async_op`` leave that to the handle.

        Before the first forward there is nothing to do. Raises RuntimeError below the root, in backward, while an
        earlier handle has not been waited for, without ``set_manual_backward_finalization(True)``, and where gradients
        are yet to be reduced across replicas.
        """
        handle = GradientReductionHandle(own_state(self))
        if async_op:
            return handle
        handle.wait()
        return None

    def reset_iter_state(self) -> None:
        """After an exception in forward or backward: begin afresh; the gradients of that iteration are lost.

        Before the first forward, which decides who is the root, there is nothing to do.
        """
        state = own_state(self)
        if state.is_root is False:
            raise RuntimeError("reset_iter_state() is for the root, and this module is within another: call it on that")
        state.tree.reset()


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Gather before and free after ``module.method_name(…)`` too, as around forward; nothing for other modules.

    Raises ValueError if there is no such method.
    """
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module).__name__} does not have a method {method_name!r}")
    original = getattr(module, method_name)
    state = own_state(module)

    @functools.wraps(original)
    def around(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = before_forward(state, self, args, kwargs)
        return after_forward(state, self, args, original(*args, **kwargs))

    object.__setattr__(module, method_name, functools.partial(around, module))


def share_comm_ctx(modules: Sequence[FSDPModule]) -> None:
    """Accepted for torch's sake: all communication runs in the process group's own streams, shared already."""
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"expected sharded modules, got a {type(module).__name__}: call fully_shard on it first")
