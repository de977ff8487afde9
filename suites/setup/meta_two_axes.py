"""Nets built on the meta device, cut by tensor parallelism and then sharded, all before they have memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from harness.worlds.rank import Rank
from suites.kit.hsdp import write
from suites.oracle.situation import Trace
from suites.parallelism.two_axes import TwoAxisCase, apply_both, mesh_of, train_prepared
from suites.setup.meta import all_facts, reset_all, unwritten


def on_meta(rank: Rank, case: TwoAxisCase) -> nn.Sequential:
    """Build the net on meta, and cut it there over both axes."""
    with torch.device("meta"):
        net = case.net.build().to(case.torch_dtype)
        return apply_both(rank, case, net, reshard_after_forward=case.reshard_after_forward)


def materialized(rank: Rank, case: TwoAxisCase) -> nn.Sequential:
    """The same with memory on the device, not yet written."""
    net = on_meta(rank, case)
    net.to_empty(device=rank.device)
    return net


def layouts_on_meta(rank: Rank, case: TwoAxisCase) -> dict[str, Any]:
    """What every parameter is after both cuts on meta."""
    return all_facts(rank, on_meta(rank, case), mesh_of(rank, case))


def layouts_on_device(rank: Rank, case: TwoAxisCase) -> dict[str, Any]:
    """What every parameter is after ``to_empty``."""
    return all_facts(rank, materialized(rank, case), mesh_of(rank, case))


def left_unwritten(rank: Rank, case: TwoAxisCase) -> dict[str, bool]:
    """Of every shard and buffer, whether ``reset_parameters`` of all modules left any of it as it was."""
    net = materialized(rank, case)
    reset_all(net)
    return unwritten(net)


def train_materialized(rank: Rank, case: TwoAxisCase) -> Trace:
    """Write the case's weights into the shards of a net that began on meta, then train."""
    net = materialized(rank, case)
    write(net, case, lambda name, full: case.part(rank.number, name, full))
    return train_prepared(rank, case, net)
