"""ZeRO-3 cannot run a net that has a parameter without elements (DeepSpeed 0.19.8, torch 2.13.0).

Run: python docs/results/defects/deepspeed/only-an-empty-parameter.py
Expected: [[-0.5]]
Got: ValueError: torch.cat(): expected a non-empty list of Tensors
"""

import os
import tempfile

import deepspeed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

CONFIG = {"zero_optimization": {"stage": 3}, "gradient_clipping": 0.0, "zero_allow_untested_optimizer": True}


def main(rank: int, store: str) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(1, 1, bias=False)
    nn.init.ones_(net.weight)
    net.empty = nn.Parameter(torch.empty(0))
    config = {**CONFIG, "train_micro_batch_size_per_gpu": 1}
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), 1.0), config=config)
    try:
        engine.backward(engine(torch.ones(1, 1) + rank).sum())
        engine.step()
        with deepspeed.zero.GatheredParameters(list(net.parameters())):
            got = net.weight.tolist()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    if rank == 0:
        print(f"Expected: [[-0.5]]\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
