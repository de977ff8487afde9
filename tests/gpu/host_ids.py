"""Imported in each rank: NCCL takes ranks with ids of their own for ranks of several hosts, and lets them share."""

from __future__ import annotations

import os

os.environ["NCCL_HOSTID"] = f"rank of process {os.getpid()}"
