"""Where the reference's staging memory comes from: the process group, symmetric memory, or anywhere."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.worlds.rank import Rank
from reference_models.fsdp.communication import comms
from tests.reference.test_corners import linear, on_ranks, refusal, sharded


class _Allocates:
    def __init__(self, able: bool) -> None:
        self.able, self.asked = able, 0

    def _get_backend(self, device: torch.device) -> _Allocates:
        return self

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return self.able

    def allocate_tensor(self, numel: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        self.asked += 1
        return torch.empty(numel, dtype=dtype, device=device)


@pytest.mark.parametrize("able", [True, False])
def test_memory_comes_from_the_group_where_it_has_some(able: bool) -> None:
    """Staging memory is the process group's own if it allocates, and ordinary memory otherwise."""
    group = _Allocates(able)
    made = comms.AllGatherFromGroup(group).allocate((2, 3), dtype=torch.float64, device=torch.device("cpu"))
    assert (made.shape, made.dtype, group.asked) == ((2, 3), torch.float64, int(able))


def test_symmetric_memory_is_made_known_before_each_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a collective touches is allocated from the pool, and told to the group before it starts."""
    known: list[int] = []
    pools: list[str] = []
    monkeypatch.setattr(comms.symmetric_memory, "set_backend", pools.append)
    monkeypatch.setattr(comms.symmetric_memory, "get_mem_pool", lambda device: "pool")
    monkeypatch.setattr(comms.symmetric_memory, "rendezvous", lambda tensor, group: known.append(tensor.numel()))
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda pool: nullcontext(pools.append(pool)))
    monkeypatch.setattr(comms, "all_gather_single", lambda *a, **k: known.append(-1))
    monkeypatch.setattr(comms, "reduce_scatter_single", lambda *a, **k: known.append(-2))
    group = type("Group", (), {"group_name": "g"})()
    gather, reduce = comms.AllGatherFromSymmetricMemory("NCCL"), comms.ReduceScatterFromSymmetricMemory("NCCL")
    flat = gather.allocate((4,), dtype=torch.float32, device=torch.device("cpu"))
    gather(flat, flat[:2], group)
    reduce(flat[:2], flat, group, None)
    assert pools == ["NCCL", "NCCL", "pool"]
    assert known == [4, -1, 4, 2, -2]


def buffers_in_symmetric_memory(rank: Rank) -> list[Any]:
    """A module that reduces in symmetric memory, told to keep several inputs."""
    net = sharded(rank, linear())
    net.set_force_sum_reduction_for_comms(True)
    net.set_symm_mem_for_comm()
    net.set_reduce_scatter_max_input_buffers(2)
    return list(refusal(net, torch.ones(1, 2)))


def test_symmetric_memory_has_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several inputs in flight and symmetric memory exclude each other, and a sentence says so."""
    monkeypatch.setattr(comms.symmetric_memory, "set_backend", lambda name: None)
    for kinds, message in on_ranks(2, buffers_in_symmetric_memory):
        assert "ValueError" in kinds
        assert "symmetric memory has one buffer" in message
