"""``set_state_dict`` broadcasts no model to ranks that have none, and rank 0 waits for them (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/other/broadcast-to-empty-ranks.py
Expected: "1.0" from both ranks, what rank 0 was given. Got: "0.0" from rank 1, and then an error on rank 0, which was
in a broadcast when the other left. An empty model state is taken for a call about the optimizer alone on that rank.
``set_model_state_dict``, which has the same options, broadcasts.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = fully_shard(torch.nn.Linear(1, 2, bias=False))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        net.weight.fill_(1.0)
    model, kept = get_state_dict(net, optimizer, options=StateDictOptions(full_state_dict=True))
    with torch.no_grad():
        net.weight.fill_(0.0)
    given = {"model_state_dict": model, "optim_state_dict": kept}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_state_dict(net, optimizer, **(given if rank == 0 else {name: {} for name in given}), options=options)
    print(net.weight.to_local().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=2)
