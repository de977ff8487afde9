"""What a vendor writes: an ``Implementation``, a ``Backend``, or both — values, not subclasses.

Example: a chip maker who lets torch's own FSDP run on a new device writes one value::

    backend = Backend(name="npu", device_type="npu", process_group="hccl", ranks=8, imports=("torch_npu",))

and runs ``pytest suites --backend my_vendor.conformance:backend``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.vendor.features import Feature

#: Why a feature is not claimed whose reason is not given.
NOT_MENTIONED = "not mentioned by the implementation"

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
else:
    Module = Tensor = Any  # importing torch takes seconds, and only a type checker looks at what functions take


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
    ``module_policy(classes)`` is a policy that chooses by class, of any iterable of classes.
    ``set_state_dict_type(module, kind)``, where kind is "sharded" or "full", says what ``state_dict()`` holds and
    ``load_state_dict()`` takes from now on; ``state_dict_type(module)`` reads it back.
    """

    shard: Callable[..., Module]
    module_policy: Callable[[Iterable[type[Module]]], Callable[[Module], bool]]
    set_state_dict_type: Callable[[Module, str], None]
    state_dict_type: Callable[[Module], str]


def _of_torch(name: str) -> Callable[..., Any]:
    """A function of torch's, which is looked for when it is called: not every run needs its module."""

    def call(*args: Any, **options: Any) -> Any:
        return getattr(importlib.import_module("torch.distributed.checkpoint.state_dict"), name)(*args, **options)

    return call


def full_tensor(tensor: Any, _: Any) -> Any:
    """A DTensor put together by its ranks; anything else as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


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

    ``whole(tensor, parameter)`` gives all of a sharded parameter, of its gradient, or of what an optimizer keeps of it,
    as a plain tensor on every rank; all ranks call it, with the same tensors in the same order. What is not sharded, as
    in a net that was refused, it gives back as it is. Where rows need not lie as torch lays them out, since
    ``Feature.ROW_LAYOUT`` is not claimed, training is compared on whole tensors alone. By default DTensors are asked
    for their ``full_tensor()``; None means that ranks' parts are to be laid end to end.
    ``sums_gradients`` says that gradients are sums over ranks, and not averages. ``one_rank_per_process`` is the reason
    why ranks cannot be threads of one process, if they cannot: the thread world is then not run.

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
    whole: Callable[[Any, Any], Tensor] | None = field(default=full_tensor)
    sums_gradients: bool = False
    one_rank_per_process: str = ""
    not_claimed: Mapping[Feature, str] = field(default_factory=dict)

    def why_not_claimed(self, feature: Feature) -> str:
        """The feature, and the reason why it is not claimed."""
        return f"{feature}: {self.not_claimed.get(feature, NOT_MENTIONED)}"


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
