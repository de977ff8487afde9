"""What the suite asks a vendor for: two values. Give one of them, or both.

    pytest suites --backend my_accelerator                                  torch's FSDP on this accelerator
    pytest suites --implementation my_sharding --backend gloo               this library on the CPU
    pytest suites --implementation my_sharding --backend my_accelerator     both

Every rank process imports this file, so it must be cheap to import and must not start anything.
"""

from __future__ import annotations

from torch.distributed import fsdp

from fsdp_conformance import CORE, Backend, Feature, Implementation
from my_accelerator import sharding

backend = Backend(
    # What records and pages say, and what a waiver calls its `subject`.
    name="my_accelerator",
    # `torch.<device_type>`: "npu", "xpu", … An example must run anywhere, so it says "cpu".
    device_type="cpu",
    # What a user would give to torch.distributed.init_process_group.
    process_group="myccl",
    # How many rank processes there can be at once: on an accelerator torch.accelerator.device_count().
    ranks=4,
    # How many ranks the thread world may put on one device. 0 if a device cannot be used by several threads.
    thread_ranks=64,
    # Imported in every rank before anything else, so that the device and the process group are known.
    imports=("my_accelerator",),
    # "spawn" if importing the plugin touches the device; "forkserver", which starts ranks much sooner, if not.
    start_method="forkserver",
    # Set in every rank: what your runtime needs to be quiet, or to be reproducible.
    environment={"MYCCL_LOG_LEVEL": "warning"},
    # Limits, by the names in harness/vendor/api.py's LIMITS, each with the reason that the page will show. Requirements
    # that need one are `not run`: the page says INCOMPLETE, since nothing was proven.
    lacks={
        "second device type": "the example's device is the CPU",
        "pinned memory": "memory of a CPU is not pinned",
        "premul_sum": "myccl adds, and has no PREMUL_SUM",
        "allocator statistics": "torch counts no memory of CPUs",
        "streams": "a CPU does one thing after another",
    },
)

# What your users may rely on. A claim is judged, and stands on the page. A requirement of a feature that is not claimed
# is not run: its row says `not claimed`, with your reason.
# ``CORE`` is what all that shard as torch's FSDP2 does have; ``TORCH_FSDP2 - {…}`` would be shorter for a longer list.
_CLAIMED = CORE | {
    Feature.PLAIN_FORWARD,
    Feature.MODULE_LISTS,
    Feature.MODULE_CLASS,
    Feature.UNSHARD,
    Feature.SHARD_PLACEMENT,
    Feature.IGNORED_PARAMS,
    Feature.META_DEVICE,
    Feature.CPU_OFFLOAD,
    Feature.ACCUMULATION,
    Feature.PREFETCH,
    Feature.FORCE_SUM,
}
# A reason for everything else: what is neither claimed nor explained is shown as "not mentioned".
_NOT_CLAIMED = {
    **dict.fromkeys((each for each in Feature if each not in _CLAIMED), "none of our users has asked for it"),
    Feature.HSDP: "shards have no replicas yet; they come with 0.2",
    Feature.MIXED_PRECISION: "parameters are sent in the dtype that they are trained in; others come with 0.2",
    Feature.TENSOR_PARALLEL: "ranks have one axis, which shards",
    Feature.DIVIDE_FACTOR: "sums are always divided by the number of ranks",
    Feature.REPLICATE: "torch's own works beside this library",
    Feature.CHECKPOINT: "torch's own works beside this library",
}

implementation = Implementation(
    name="my_sharding",
    # Waivers may hold for a range of versions only.
    version="0.1.0",
    # The functions under judgement, with torch's names and signatures. One that is None cannot be claimed.
    fully_shard=sharding.fully_shard,
    module_class=fsdp.FSDPModule,
    offload_policy=fsdp.OffloadPolicy,
    cpu_offload_policy=fsdp.CPUOffloadPolicy,
    # A claim without its function, or claimed and disclaimed at once, is refused before the run.
    claims=_CLAIMED,
    not_claimed=_NOT_CLAIMED,
)
