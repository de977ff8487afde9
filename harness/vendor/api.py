"""What a vendor writes: an ``Implementation``, a ``Backend``, or both — values, not subclasses.

Example: a chip maker who lets torch's own FSDP run on a new device writes one value::

    backend = Backend(name="npu", device_type="npu", process_group="hccl", ranks=8, imports=("torch_npu",))

and runs ``pytest suites --backend my_vendor.conformance:backend``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.data.kinds import StringEnum

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = Any  # importing torch takes seconds, and only a type checker looks at what functions take


class Feature(StringEnum):
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
    REPLICATE_FSDP = "replicate as FSDPModule"
    CHECKPOINT = "checkpoint"
    WRAP_POLICY = "wrap policies and sharding strategies"
    EXTENSIONS = "all-gather extensions"
    PARAMETER_MESH = "ShardPlacementResult"
    SPMD_MESH = "dp_mesh_dims"
    FORWARD_METHOD = "register_fsdp_forward_method"
    SHARED_CONTEXT = "share_comm_ctx"
    ACCUMULATION = "gradient accumulation"
    PREFETCH = "explicit prefetch"
    DIVIDE_FACTOR = "gradient divide factor"
    FORCE_SUM = "forced sum reduction"
    ALL_REDUCE_HOOK = "all-reduce hook"
    CUSTOM_COLLECTIVES = "custom collectives"
    GROUP_MEMORY = "memory from the process group"
    UNUSED_PARAMETERS = "reduction of unused parameters"
    INPUT_BUFFERS = "reduce-scatter input buffers"
    SEPARATE_GROUP = "separate reduce-scatter group"
    PARTIAL_GROUPS = "module lists run in part"
    RESET = "reset after an exception"
    OPTIMIZER_EVENT = "event after the optimizer"
    INTROSPECTION = "introspection"


@dataclass(frozen=True)
class ParameterOwner:
    """Who owns a managed parameter: the module and attribute first met, then every other pair that shares it."""

    module: Module
    name: str
    shared: tuple[tuple[Module, str], ...] = ()


@dataclass(frozen=True)
class GroupState:
    """What lazy initialisation settled for one sharded module; names are relative to the root (root: ``""``)."""

    module: Module
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

    managed_modules: Callable[[Module], list[Module]]
    managed_states: Callable[[Module], tuple[list[Any], list[Any]]]
    parameter_owners: Callable[[Module], list[ParameterOwner]]
    lazy_init: Callable[[Module], None]
    states: Callable[[Module], list[GroupState]]


@dataclass(frozen=True)
class Strategies:
    """Sharding by policy, for implementations that keep FSDP's classic strategies.

    ``shard(module, policy=None, strategy="FULL_SHARD", mesh=None)`` spreads the modules that ``policy`` chooses, then
    ``module``, in place; strategies are FULL_SHARD, SHARD_GRAD_OP, NO_SHARD and HYBRID_SHARD.
    ``module_policy(classes)`` is a policy that chooses by class. ``set_state_dict_type(module, kind)``, where kind is
    "sharded" or "full", says what ``state_dict()`` holds and ``load_state_dict()`` takes from now on;
    ``state_dict_type(module)`` reads it back.
    """

    shard: Callable[..., Module]
    module_policy: Callable[[set[type[Module]]], Callable[[Module], bool]]
    set_state_dict_type: Callable[[Module, str], None]
    state_dict_type: Callable[[Module], str]


def _of_torch(name: str) -> Callable[..., Any]:
    """A function of torch's, which is looked for when it is called: not every run needs its module."""

    def call(*args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module("torch.distributed.checkpoint.state_dict"), name)(*args, **options)

    return call


@dataclass(frozen=True)
class StateDicts:
    """How the state of a module and its optimizer, keyed by parameters' names, is asked for and loaded.

    The names and signatures are those of ``torch.distributed.checkpoint.state_dict``, options too. What is not given is
    torch's own function, which then has to work on the implementation's modules.
    """

    get_model_state_dict: Callable[..., Any] = field(default=_of_torch("get_model_state_dict"))
    get_optimizer_state_dict: Callable[..., Any] = field(default=_of_torch("get_optimizer_state_dict"))
    set_model_state_dict: Callable[..., Any] = field(default=_of_torch("set_model_state_dict"))
    set_optimizer_state_dict: Callable[..., Any] = field(default=_of_torch("set_optimizer_state_dict"))


@dataclass(frozen=True)
class Implementation:
    """The functions under judgement, with torch's public names and signatures, and the features they claim.

    ``replicate`` may keep plain parameters, as DDP does; ``replicate_fsdp`` gives DTensors and ``FSDPModule``s.
    ``shard_mesh_info(mesh)`` makes what ``shard_placement_result(placement, mesh_info)`` takes for a mesh of one axis.

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
    share_comm_ctx: Callable[..., Any] | None = None
    replicate: Callable[..., Any] | None = None
    replicate_fsdp: Callable[..., Any] | None = None
    checkpoint: Callable[..., Any] | None = None
    strategies: Strategies | None = None
    shard_placement_result: Callable[..., Any] | None = None
    shard_mesh_info: Callable[..., Any] | None = None
    data_parallel_mesh_dims: Callable[..., Any] | None = None
    introspection: Introspection | None = None
    state_dicts: StateDicts = StateDicts()
    not_claimed: Mapping[Feature, str] = field(default_factory=dict)


class Claimed(Implementation):
    """An implementation as programs see it: what their requirement needs has been claimed, and so is there."""

    fully_shard: Callable[..., Any]
    module_class: type
    mixed_precision_policy: Callable[..., Any]
    offload_policy: Callable[..., Any]
    cpu_offload_policy: Callable[..., Any]
    register_forward_method: Callable[..., Any]
    share_comm_ctx: Callable[..., Any]
    replicate: Callable[..., Any]
    replicate_fsdp: Callable[..., Any]
    checkpoint: Callable[..., Any]
    strategies: Strategies
    shard_placement_result: Callable[..., Any]
    shard_mesh_info: Callable[..., Any]
    data_parallel_mesh_dims: Callable[..., Any]
    introspection: Introspection


@dataclass(frozen=True)
class Backend:
    """Where ranks run.

    ``ranks`` is how many rank processes this machine offers (on an accelerator usually its device count);
    ``thread_ranks`` how many ranks the thread world may put on one device, 0 when it cannot run there.
    ``imports`` are imported in every rank before anything else. ``start_method`` is ``"forkserver"``, or
    ``"spawn"`` when importing the backend touches the device. ``persistent`` keeps rank processes alive from one
    test to the next, always with a fresh process group, and until anything fails; False is for backends that make no
    second group in one process. ``environment`` is set in every rank. ``check`` names a function of a module, as
    ``module:function``, that is called before and after each program in the process of its ranks: sentences that it
    returns afterwards, such as what a memory checker has found, fail the program. ``timeline`` names one that has what
    a device runs kept (called with True) and handed over (with False): stream, kernel, begin and end in µs of each.
    ``own_devices`` says that each process has devices of its own, as simulated ones are, so that several may run
    tests. ``visible_devices`` is for devices that processes share, as many as ``ranks``: the variable that says which
    of them a process sees, and in which order, such as CUDA_VISIBLE_DEVICES. With it, several may run tests, too: each
    leases the devices of its ranks. ``lacks`` declares limits by the names in ``LIMITS``, each with a reason that the
    report shows; one on CPUs lacks what those of ``ON_CPUS`` do, unless it gives "" for a reason.
    """

    name: str
    device_type: str = "cpu"
    process_group: str = "gloo"
    ranks: int = 4
    thread_ranks: int = 64
    imports: tuple[str, ...] = ()
    start_method: str = "forkserver"
    persistent: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    check: str = ""
    timeline: str = ""
    own_devices: bool = False
    visible_devices: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.lacks, Mapping):  # what is no such thing is refused where backends are loaded
            lacks = {**(ON_CPUS if self.device_type == "cpu" else {}), **self.lacks}
            object.__setattr__(self, "lacks", {limit: why for limit, why in lacks.items() if why != ""})


#: What ranks on CPUs lack, whatever communicates between them.
ON_CPUS = {
    "second device type": "ranks are on the CPU, as all of this machine is to them",
    "pinned memory": "pinning host memory needs an accelerator",
    "allocator statistics": "torch counts no memory of CPUs",
    "streams": "a CPU's cores do one thing after another, collectives too",
}

#: What a machine or backend may lack, and a requirement may ask for by ``@requires(limits=…)``.
LIMITS = {
    "second device type": "parameters on one device type and a mesh on another",
    "pinned memory": "page-locked host memory",
    "premul_sum": "ReduceOp.PREMUL_SUM",
    "allocator statistics": "torch.accelerator's counts of a device's memory",
    "streams": "collectives that run beside compute",
}

#: The attribute of ``Implementation`` without which a claim is empty.
NEEDS: Mapping[Feature, str] = {
    **dict.fromkeys(Feature, "fully_shard"),
    Feature.MIXED_PRECISION: "mixed_precision_policy",
    Feature.CPU_OFFLOAD: "cpu_offload_policy",
    Feature.REPLICATE: "replicate",
    Feature.REPLICATE_FSDP: "replicate_fsdp",
    Feature.CHECKPOINT: "checkpoint",
    Feature.WRAP_POLICY: "strategies",
    Feature.PARAMETER_MESH: "shard_placement_result",
    Feature.SPMD_MESH: "data_parallel_mesh_dims",
    Feature.FORWARD_METHOD: "register_forward_method",
    Feature.SHARED_CONTEXT: "share_comm_ctx",
    Feature.INTROSPECTION: "introspection",
}

#: The method of ``Implementation.module_class`` without which a claim is empty.
NEEDS_METHOD: Mapping[Feature, str] = {
    Feature.ACCUMULATION: "set_requires_gradient_sync",
    Feature.PREFETCH: "set_modules_to_forward_prefetch",
    Feature.DIVIDE_FACTOR: "set_gradient_divide_factor",
    Feature.FORCE_SUM: "set_force_sum_reduction_for_comms",
    Feature.ALL_REDUCE_HOOK: "set_all_reduce_hook",
    Feature.CUSTOM_COLLECTIVES: "set_custom_all_gather",
    Feature.GROUP_MEMORY: "set_allocate_memory_from_process_group_for_comm",
    Feature.UNUSED_PARAMETERS: "set_reduce_scatter_unused_params",
    Feature.INPUT_BUFFERS: "set_reduce_scatter_max_input_buffers",
    Feature.SEPARATE_GROUP: "set_separate_reduce_scatter_group",
    Feature.RESET: "reset_iter_state",
    Feature.OPTIMIZER_EVENT: "set_post_optim_event",
}


def lacking(implementation: Implementation, feature: Feature) -> str | None:
    """What ``implementation`` would have to have for ``feature``, as ``Implementation.x``; None if it is there."""
    method = NEEDS_METHOD.get(feature)
    if method is not None and not hasattr(implementation.module_class, method):
        return f"Implementation.module_class.{method}"
    if getattr(implementation, NEEDS[feature]) is None:
        return f"Implementation.{NEEDS[feature]}"
    return None
