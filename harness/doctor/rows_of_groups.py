"""Rows about process groups: how they are made, what they compute, and when results are there."""

from __future__ import annotations

from harness.doctor.rows import Row

ROWS = (
    Row(
        "21a",
        "groups",
        "the backend is registered with torch under its name and for the device type",
        "`init_process_group` knows no such backend, or takes another for the device",
        "call `torch.distributed.Backend.register_backend(name, function, devices=['npu'])` when the plugin is "
        "imported, with a list: torch 2.13 reads the string 'npu' as devices n, p and u",
        needs_device=False,
    ),
    Row(
        "21b",
        "groups",
        "`init_process_group` makes a group of all ranks",
        "no rank gets as far as a collective",
        "read the message and the stack; if ranks wait for their peers, check network interfaces; on a slow "
        "machine give more time with `--patience`",
    ),
    Row(
        "15a",
        "collectives",
        "all-gather, broadcast and barrier, in the dtypes that FSDP sends",
        "parameters cannot be unsharded, or are other ranks' or garbage",
        "implement `_allgather_base`, `broadcast` and `barrier` of the c10d backend, for bytes too",
    ),
    Row(
        "16a",
        "collectives",
        "all-reduce and reduce-scatter by SUM",
        "gradients cannot be reduced, or are wrong; FSDP sums where gradients are reduced in float16",
        "implement `allreduce` and `_reduce_scatter_base` of the c10d backend, right for every size",
    ),
    Row(
        "16b",
        "collectives",
        "all-reduce and reduce-scatter by AVG",
        "FSDP reduces float32 and bfloat16 by AVG: backward fails, or gradients are off by a factor",
        "implement ReduceOp.AVG: sum, then divide once by the number of ranks; or have users call "
        "`set_force_sum_reduction_for_comms(True)`",
    ),
    Row(
        "16c",
        "collectives",
        "all-reduce and reduce-scatter by PREMUL_SUM",
        "`set_gradient_divide_factor` with another factor than the number of ranks fails in backward",
        "implement ReduceOp.PREMUL_SUM without writing to the input; or declare `lacks={'premul_sum': reason}`: users "
        "then call `set_force_sum_reduction_for_comms(True)`",
        limit="premul_sum",
    ),
    Row(
        "17a",
        "collectives",
        "an all-gather whose input lies within its output",
        "unsharded parameters are corrupted: FSDP gathers in place",
        "read the input before the output is written, and allow the two to share memory",
    ),
    Row(
        "17b",
        "collectives",
        "nothing but outputs is written",
        "what lies beside an output, or is sent twice, changes silently",
        "scale and pad in memory of your own, never in the caller's input",
    ),
    Row(
        "18",
        "order",
        "after a call with `async_op=False` the current stream sees the result",
        "copies out of an all-gather read what is not there yet",
        "return only after the current stream was made to wait; honour `opts.asyncOp`",
    ),
    Row(
        "19a",
        "order",
        "a call with `async_op=True` gives a `torch.distributed.Work`, whose `wait()` is enough",
        "FSDP waits for a `Work` only: anything else is ignored, and numbers are read too early",
        "return a subclass of `torch.distributed.Work`; after `wait()` the current stream must see the result",
    ),
    Row(
        "19b",
        "order",
        "`Work.wait()` has the stream wait, and not the host",
        "communication does not run beside compute: right, but slow",
        "queue a wait on the current stream in `wait()`; or declare `lacks={'streams': reason}`",
        level="should",
        limit="streams",
        on_cpu=False,
    ),
    Row(
        "20",
        "order",
        "a call in flight keeps its tensors alive",
        "memory is handed out again while it is still sent: wrong numbers, now and then",
        "hold the tensors in the `Work` until it is done, or record the stream on them",
    ),
    Row(
        "15b",
        "groups",
        "a process group written in Python answers to torch's new names",
        "torch 2.13 calls names that the class does not have: no backend for the device",
        "override `all_gather_single`, `reduce_scatter_single`, their `_coalesced` forms, `group_name`, `size`, `rank`",
    ),
    Row(
        "16d",
        "collectives",
        "reductions on four ranks are as right as on two",
        "gradients are off from some number of ranks on",
        "look for code that is taken by the number of ranks, and for divisions by a fixed number",
    ),
    Row(
        "22a",
        "groups",
        "a group for each axis of a mesh",
        "hybrid sharding, and tensor parallelism beside FSDP, fail or reduce over the wrong ranks",
        "`new_group` of some ranks must number them from 0, and mix with no other group",
    ),
    Row(
        "22b",
        "groups",
        "`new_group(use_local_synchronization=True)`, used beside the first group",
        "`set_separate_reduce_scatter_group` fails, or the two groups wait for each other",
        "make a second group of the same ranks without those of other groups; keep buffers and channels apart",
    ),
    Row(
        "22c",
        "groups",
        "`split_group`, where a device was bound",
        "meshes are made by `new_group`, which takes longer at scale",
        "optional: say `supports_splitting` and implement `split`",
        level="may",
    ),
    Row(
        "23",
        "tools",
        "coalesced all-gather, reduce-scatter and all-reduce",
        "training may work, and then state dicts, clipping and `DTensor.full_tensor()` fail",
        "implement `all_gather_single_coalesced`, `reduce_scatter_single_coalesced` and `allreduce_coalesced` (before "
        "torch 2.13 `allgather_into_tensor_coalesced` and `reduce_scatter_tensor_coalesced`)",
    ),
    Row(
        "24",
        "tools",
        "functional collectives, which end in `wait_tensor`, and DTensor on them",
        "`full_tensor()`, clipping and distributed checkpoints fail or give other numbers",
        "have every collective return a `Work`, and register the group under its name",
    ),
    Row(
        "15c",
        "tools",
        "strided tensors are sent and reduced rightly, or refused",
        "FSDP sends contiguous memory, so it is right; users' own calls get wrong numbers silently",
        "copy to contiguous memory, or raise",
        level="should",
    ),
    Row(
        "28",
        "tools",
        "memory for communication from the process group",
        "`set_allocate_memory_from_process_group_for_comm` brings no speed",
        "optional: say `supports_tensor_alloc` and implement `allocate_tensor`",
        level="may",
    ),
    Row(
        "30",
        "tools",
        "one training step of the implementation, with the gradients of the unsharded net",
        "nothing else can be right",
        "mend the rows above first; if all are found, run the suites: they say more",
    ),
)
