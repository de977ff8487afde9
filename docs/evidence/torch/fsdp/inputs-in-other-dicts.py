"""A root's inputs reach it mangled on a device, where they are other dicts than plain ones (seen in torch 2.13.0).

Run: python docs/evidence/torch/fsdp/inputs-in-other-dicts.py
Expected: a tensor twice. Got: ('x', tensor), silently, for a dict such as models of Hugging Face return, and TypeError
for a default dict: their classes are called with pairs.
"""

import tempfile
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard


@dataclass
class Output(OrderedDict):
    x: Any = None

    def __post_init__(self):
        self["x"] = self.x


def main(_: int, store: str) -> None:
    from harness.simulated import device, process_group  # noqa: F401

    dist.init_process_group("simulated", init_method=f"file://{store}", rank=0, world_size=1)
    net: Any = torch.nn.Linear(1, 1).to("simulated")
    net.forward = lambda given: print(given["x"])
    fully_shard(net)
    for given in (Output(torch.ones(1)), defaultdict(list, x=torch.ones(1))):
        net(given)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(main, (f"{folder}/store",), nprocs=1)
