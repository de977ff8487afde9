"""ZeRO-3 gathers nothing for backward where the net returns an object (DeepSpeed 0.19.8, torch 2.13.0).

Run: python docs/results/defects/deepspeed/outputs-in-an-object.py
Expected: [[-0.375, -0.375]]
Got: RuntimeError: The size of tensor a (0) must match the size of tensor b (2) at non-singleton dimension 1
"""

import os
import tempfile

import deepspeed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

CONFIG = {"zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True, "train_batch_size": 2}


def main(rank: int, store: str) -> None:
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    net = nn.Linear(2, 1, bias=False)
    net.weight.data.zero_()
    net.register_forward_hook(lambda module, inputs, outputs: type("Outputs", (), {"logits": outputs}))
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), 1.0), config=CONFIG)
    try:
        engine.backward(engine(torch.ones(1, 2) / 4 + rank / 4).logits.sum())
        engine.step()
        with deepspeed.zero.GatheredParameters(list(net.parameters())):
            got = net.weight.tolist()
    except RuntimeError as error:
        got = f"RuntimeError: {error}"
    if rank == 0:
        print(f"Expected: [[-0.375, -0.375]]\nGot: {got}", flush=True)


if __name__ == "__main__":
    mp.spawn(main, (f"{tempfile.mkdtemp()}/store",), nprocs=2)
