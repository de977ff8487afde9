"""``set_model_state_dict`` says nothing of names that a full state lacks, however strict (torch 2.13.0, 2.15.0).

Run: python docs/evidence/torch/other/full-state-lacks-names.py
Expected: RuntimeError, 'Missing key(s) in state_dict: "weight"', as without full_state_dict. Got: "<All keys matched
successfully>". What the state lacks is filled in from the net before names are compared.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
net = fully_shard(torch.nn.Linear(2, 2))
print(set_model_state_dict(net, {"bias": torch.ones(2)}, options=StateDictOptions(full_state_dict=True)))
dist.destroy_process_group()
