"""``set_model_state_dict`` of a full state fails while parameters are unsharded, as after evaluation (torch 2.13.0).

Run: python docs/evidence/torch/other/full-state-into-gathered-net.py
Expected: "loaded" from both ranks. Got: RuntimeError, "got mixed torch.Tensor and DTensor". The full tensors are cut as
the parameters are that are registered: not at all while those are unsharded. Loading shards them, and then it is too
late. A root keeps its own parameters unsharded after every forward, by default.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net, options = fully_shard(torch.nn.Linear(2, 2)), StateDictOptions(full_state_dict=True)
    best = get_model_state_dict(net, options=options)
    with torch.no_grad():
        net(torch.ones(1, 2))
    set_model_state_dict(net, best, options=options)
    print("loaded", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
