"""In FSDP1 a module gives a plain dict where it returned one of a class of its user's (torch 2.13.0).

Lists, named tuples and ordered dicts keep their class.

Run: python docs/results/defects/fsdp1/classes-of-dicts.py
Expected: Attributes
Got: dict
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Attributes(dict[str, Any]):
    """A dict of a user's class."""


class Net(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return Attributes(y=super().forward(x))


def given(net: Any) -> str:
    return type(net(torch.ones(1, 1))).__name__


dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
print("Expected:", given(Net(1, 1)))
print("Got:", given(FSDP(Net(1, 1), device_id=torch.device("cpu"), use_orig_params=True)))
