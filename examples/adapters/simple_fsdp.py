"""torchtitan's SimpleFSDP: parameters are DTensors, and reading one in forward gathers it.

Besides ``torchtitan``, importing it takes ``spmd_types``, ``tyro``, ``docstring_parser`` and ``typeguard``.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torchtitan.experiments.graph_trainer.simple_fsdp import MixedPrecisionPolicy, data_parallel

from harness.vendor import Feature, Implementation
