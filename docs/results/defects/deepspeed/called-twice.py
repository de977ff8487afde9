"""In ZeRO-3 loss.backward() raises if the engine ran twice before it (DeepSpeed 0.19.8, torch 2.13.0).

Run: python docs/results/defects/deepspeed/called-twice.py
Expected: [[-2.0]]
Got: KeyError: 0
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
    config = {**CONFIG, "train_micro_batch_size_per_gpu": 1}
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), 1.0), config=config)
    try:
        engine(engine(torch.ones(1, 1) + rank)).sum().backward()
        engine.step()
        with deepspeed.zero.GatheredParameters(list(net.parameters())):
            got = net.weight.tolist()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    if rank == 0:
        print(f"Expected: [[-2.0]]\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
