"""A net that ran in inference mode before it first trained cannot train any more (seen in torch 2.13.0).

Run: python docs/evidence/torch/interactions/inference-then-training.py
Expected: trained, from both ranks. Got: RuntimeError, "Inplace update to inference tensor outside InferenceMode", or
"Inference tensors cannot be saved for backward" where parameters stay gathered. The memory of unsharded parameters is
made once, in the mode of the first forward. Under no_grad instead of inference mode both ranks train.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = fully_shard(torch.nn.Linear(2, 2), reshard_after_forward=True)
    with torch.inference_mode():
        net(torch.ones(1, 2))
    net(torch.ones(1, 2)).sum().backward()
    print("trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
