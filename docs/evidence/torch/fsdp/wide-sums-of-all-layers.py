"""On replicas of shards, sums in a wider dtype than the parameters' are kept until backward is over (torch 2.13.0).

Layers of bfloat16 are reduced in float32, and their gradients cast back. The float32 sum of each layer, 16 kB, could be
freed then. As backward comes to the first of 8 layers, those of all others are still there.

Run: python docs/evidence/torch/fsdp/wide-sums-of-all-layers.py
Expected: at most 2 from both ranks. Got: 8 from both.
"""

import gc
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def wide(*_: object) -> None:
    tensors = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.dtype == torch.float32]
    print(len({t.untyped_storage().data_ptr() for t in tensors if t.untyped_storage().nbytes() >= 2**14}), flush=True)


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    layers = [torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16) for _ in range(8)]
    net = torch.nn.Sequential(*layers)
    for module in (*net, net):
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    net[0].register_full_backward_pre_hook(wide)
    net(torch.ones(1, 64, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
