"""What is loaded while a gather is under way is not what forward runs with (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/other/loaded-while-gathering.py
Expected of both ranks: "state dict: 1.0, forward: 1.0". Got: "state dict: 1.0, forward: 0.0". Loading reshards what is
unsharded, and leaves a gather that has been started.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    fully_shard(net)
    new = {name: torch.ones_like(value) for name, value in net.state_dict().items()}
    net.unshard(async_op=True)
    net.load_state_dict(new)
    with torch.no_grad():
        output = net(torch.ones(1, 1)).item()
    print(f"state dict: {net.state_dict()['weight'].full_tensor().item()}, forward: {output}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, args=(f"{folder}/store",), nprocs=2)
