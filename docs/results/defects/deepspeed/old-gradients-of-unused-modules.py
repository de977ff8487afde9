"""ZeRO-3 steps a module that did not run with its gradient of the step before (DeepSpeed 0.19.8, torch 2.13.0).

Run: python docs/results/defects/deepspeed/old-gradients-of-unused-modules.py
Expected: [[0.0, 1.0], [0.0, 0.0]]
Got: [[0.0, 1.0], [-1.0, 0.0]]
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
    net = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))
    [nn.init.ones_(module.weight) for module in net]
    net.forward = lambda which, x: net[which](x)
    config = {**CONFIG, "train_micro_batch_size_per_gpu": 1}
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), 1.0), config=config)
    got = []
    for which in (0, 1):
        engine.backward(engine(which, torch.ones(1, 1)).sum())
        engine.step()
        with deepspeed.zero.GatheredParameters(list(net.parameters())):
            got.append([module.weight.item() for module in net])
    if rank == 0:
        print(f"Expected: [[0.0, 1.0], [0.0, 0.0]]\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
