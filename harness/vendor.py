"""What a vendor writes: an ``Implementation``, a ``Backend``, or both — values, not subclasses.

Example: a chip maker who lets torch's own FSDP run on a new device writes one value::

    backend = Backend(name="npu", device_type="npu", process_group="hccl", ranks=8, imports=("torch_npu",))

and runs ``pytest suites --backend my_vendor.conformance:backend``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch.nn as nn


class Feature(str, Enum):
    """One thing an implementation can claim. The value is the stable name that records and pages show."""

    FULLY_SHARD = "fully_shard"
    RESHARD_TO_GROUP = "reshard_after_forward=int"
    SHARD_PLACEMENT = "shard_placement_fn"
    MIXED_PRECISION = "mixed precision"
    CPU_OFFLOAD = "CPU offload"
    IGNORED_PARAMS = "ignored_params"
    HSDP = "HSDP"
    TENSOR_PARALLEL = "tensor parallel"
    META_DEVICE = "meta device"
    MESH_FROM_GROUP = "DeviceMesh.from_group"
    STATE_DICT = "state dict"
    REPLICATE = "replicate"
    CHECKPOINT = "checkpoint"
    INTROSPECTION = "introspection"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ParameterOwner:
    """Who owns a managed parameter: the module and attribute first met, then every other pair that shares it."""

    module: nn.Module
    name: str
    shared: tuple[tuple[nn.Module, str], ...] = ()


@dataclass(frozen=True)
class GroupState:
    """What lazy initialisation settled for one sharded module; names are relative to the root (root: ``""``)."""

    module: nn.Module
    is_root: bool
    module_name: str | None
    parameter_names: frozenset[str]


@dataclass(frozen=True)
class Introspection:
    """Optional window into an implementation, for the requirements that are about its bookkeeping.

    ``managed_modules(module)``, ``managed_states(module)`` and ``parameter_owners(module)`` answer what a call
    of ``fully_shard(module)`` made now would manage; ``lazy_init(module)`` runs lazy initialisation as the first
    forward through ``module`` would; ``states(root)`` lists, in the root's own order, what was initialised.
    """

    managed_modules: Callable[[nn.Module], list[nn.Module]]
    managed_states: Callable[[nn.Module], tuple[list[Any], list[Any]]]
    parameter_owners: Callable[[nn.Module], list[ParameterOwner]]
    lazy_init: Callable[[nn.Module], None]
    states: Callable[[nn.Module], list[GroupState]]


@dataclass(frozen=True)
class Implementation:
    """The functions under judgement, with torch's public names and signatures, and the features they claim.

    ``not_claimed`` gives the reason for each feature left out; a feature that is neither claimed nor explained
    is reported with the reason "not mentioned". ``load_implementation`` refuses a claim whose function is missing.
    """

    name: str
    claims: frozenset[Feature]
    version: str = ""
    fully_shard: Callable[..., Any] | None = None
    module_class: type | None = None
    mixed_precision_policy: Callable[..., Any] | None = None
    offload_policy: Callable[..., Any] | None = None
    cpu_offload_policy: Callable[..., Any] | None = None
    register_forward_method: Callable[..., Any] | None = None
    replicate: Callable[..., Any] | None = None
    checkpoint: Callable[..., Any] | None = None
    introspection: Introspection | None = None
    not_claimed: Mapping[Feature, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Backend:
    """Where ranks run.

    ``ranks`` is how many rank processes this machine offers (on an accelerator usually its device count);
    ``thread_ranks`` how many ranks the thread world may put on one device, 0 when it cannot run there.
    ``imports`` are imported in every rank before anything else. ``start_method`` is ``"forkserver"``, or
    ``"spawn"`` when importing the backend touches the device. ``persistent`` keeps rank processes alive from one
    test to the next, always with a fresh process group. ``environment`` is set in every rank. ``lacks`` declares
    limits by the names of ``Limit``, each with a reason that the report shows.
    """

    name: str
    device_type: str = "cpu"
    process_group: str = "gloo"
    ranks: int = 4
    thread_ranks: int = 64
    imports: tuple[str, ...] = ()
    start_method: str = "forkserver"
    persistent: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)


#: What a machine or backend may lack, and a requirement may ask for by ``@requires(limits=…)``.
LIMITS = {
    "second device type": "parameters on one device type and a mesh on another",
    "pinned memory": "page-locked host memory",
    "premul_sum": "ReduceOp.PREMUL_SUM",
}

#: The attribute of ``Implementation`` without which a claim is empty.
NEEDS: Mapping[Feature, str] = {
    **dict.fromkeys(Feature, "fully_shard"),
    Feature.MIXED_PRECISION: "mixed_precision_policy",
    Feature.CPU_OFFLOAD: "cpu_offload_policy",
    Feature.REPLICATE: "replicate",
    Feature.CHECKPOINT: "checkpoint",
    Feature.INTROSPECTION: "introspection",
}
