"""Methods of sharded modules that are called with named arguments, and that ask for what is so anyway.

A block that is reduced is told to be, by ``net.set_requires_gradient_sync(requires_gradient_sync=True)``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.vendor import Feature
from harness.vendor.bounds import claims
from suites.kit.own_collectives import OwnGather
from suites.kit.programs import ShardedStack


def _nothing(reduced: Tensor) -> None:
    pass


#: By the feature that they are about, methods and named arguments that ask of two ranks for what is so anyway.
NAMED: dict[Feature, dict[str, dict[str, Any]]] = {
    Feature.UNSHARD: {
        "unshard": {"async_op": False},
        "reshard": {},
        "set_reshard_after_forward": {"reshard_after_forward": True},
        "set_reshard_after_backward": {"reshard_after_backward": True},
    },
    Feature.UNSHARD_IN_BACKWARD: {"set_unshard_in_backward": {"unshard_in_backward": True}},
    Feature.KEPT_STORAGE: {"set_keep_unsharded_storage": {"keep": False}},
    Feature.PREFETCH: {
        "set_modules_to_forward_prefetch": {"modules": []},
        "set_modules_to_backward_prefetch": {"modules": []},
    },
    Feature.ACCUMULATION: {"set_requires_gradient_sync": {"requires_gradient_sync": True}},
    Feature.HSDP: {"set_requires_all_reduce": {"requires_all_reduce": True}},
    Feature.LAST_BACKWARD: {"set_is_last_backward": {"is_last_backward": True}},
    Feature.MANUAL_FINALIZATION: {"set_manual_backward_finalization": {"enabled": False}},
    Feature.DIVIDE_FACTOR: {"set_gradient_divide_factor": {"factor": 2.0}},
    Feature.FORCE_SUM: {"set_force_sum_reduction_for_comms": {"enable": False}},
    Feature.UNUSED_PARAMETERS: {"set_reduce_scatter_unused_params": {"reduce_scatter_unused_params": False}},
    Feature.INPUT_BUFFERS: {"set_reduce_scatter_max_input_buffers": {"max_input_buffers": 1}},
    Feature.SEPARATE_GROUP: {"set_separate_reduce_scatter_group": {"enable": False}},
    Feature.ALL_REDUCE_HOOK: {"set_all_reduce_hook": {"hook": _nothing}},
    Feature.CUSTOM_COLLECTIVES: {"set_custom_all_gather": {"comm": OwnGather()}},
}


class Named(ShardedStack):
    """A net that is told all this before each forward, and trains as one that is not."""

    about = frozenset(NAMED)

    def forward(self, module: str) -> dict[str, Any]:
        """Say it, and go forward."""
        for calls in (calls for feature, calls in NAMED.items() if feature in self.about & claims()):
            for method, arguments in calls.items():
                getattr(self.net, method)(**arguments)
        return super().forward(module)


class Divided(Named):
    """The same, but for how gradients are divided."""

    about = frozenset(NAMED) - {Feature.DIVIDE_FACTOR, Feature.FORCE_SUM}
