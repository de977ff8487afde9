"""The user's model on ranks: sharded as it is wrapped, saved, resumed, begun on meta, and measured."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions

from harness.worlds.rank import Rank
from suites.kit.expected_collectives import as_meant, tells_nothing
from suites.lifetimes.memory_programs import Bytes, registered, settled
from suites.lifetimes.tally import Tally
from suites.model.cases import ModelCase
from suites.model.factory import known
from suites.oracle.layout import own
from suites.oracle.sharded import State
from suites.oracle.situation import STEP
from suites.saving.checkpoint_programs import OnRank, overwrite


def spread(rank: Rank, case: ModelCase, net: Any) -> Any:
    """Shard each wrapped module, then the root."""
    for name in (*case.known.wrapped, ""):
        module = net.get_submodule(name)
        rank.implementation.fully_shard(module, mesh=rank.mesh(), reshard_after_forward=case.reshard_after_forward)
    return net


class ShardedModel(OnRank):
    """The model of a case, on one rank."""

    def made(self) -> Any:
        """The net, sharded."""
        return spread(self.rank, self.case, self.case.build_in(None).to(self.rank.device))


class FromMeta(ShardedModel):
    """The same, built and sharded on the meta device, and then given its weights and buffers."""

    def made(self) -> Any:
        """The net."""
        full = self.case.build_in(None).to(self.rank.device)
        known(self.case.model)  # also its inputs, which are not to be on meta
        with torch.device("meta"):
            net = spread(self.rank, self.case, self.case.build_in(None))
        net.to_empty(device=self.rank.device)
        states = self.rank.implementation.state_dicts
        states.set_model_state_dict(net, full.state_dict(), options=StateDictOptions(full_state_dict=True))
        for name, buffer in net.named_buffers():
            buffer.copy_(full.get_buffer(name))
        return net


def save(rank: Rank, case: ModelCase, path: str) -> None:
    """Train, and save the net and its optimizer."""
    net = ShardedModel(rank, case.here())
    net.do_all(net.case.actions)
    net.write(path)


def resume(rank: Rank, case: ModelCase, path: str) -> list[State]:
    """Load into a net whose parameters are lost, and a new optimizer; what one more step shows."""
    net = ShardedModel(rank, case)
    overwrite(net.net.parameters())
    net.read(path, partly=True)
    start = case.actions.index("move") + 1
    net.batches = case.actions[:start].count("forward")
    return [net.do(action, case.shown(start + place)) for place, action in enumerate(case.actions[start:])]


# What is held, and what is sent.


def held(rank: Rank, case: ModelCase) -> Bytes:
    """The bytes behind parameters, and of all tensors when a second step is at rest and after its forward.

    ``activations`` is what is held after the forward of the same net unsharded, besides the net.
    """
    with Tally() as tally:
        whole = case.build_in(None).to(rank.device)
        before = tally.alive()
        losses = case.losses(case.run(whole, 0, rank.number, case.torch_dtype, rank.device), 0, rank.number)
        activations = tally.alive() - before
        del whole, losses
    with Tally() as tally:
        net = ShardedModel(rank, case)
        found = {"activations": activations, "registered": registered(net.net)}
        buffers = sum(own(each).nbytes for each in net.net.buffers())
        net.optimizer = torch.optim.SGD(net.held.values(), lr=0.01, foreach=False)  # which keeps nothing
        net.do_all(STEP)
        for action in STEP:
            net.do(action, ())
            found[f"after {action}"] = settled(tally, 0) - buffers
    return found


def sent(rank: Rank, case: ModelCase) -> dict[str, int]:
    """The bytes that this rank gives to gathers, and gets from reductions, in the second of two steps."""
    net = ShardedModel(rank, case)
    net.do_all(STEP)
    with rank.collectives() as entries:
        net.do_all(STEP)
    found: Counter[str] = Counter()
    for each in (as_meant(one) for one in entries if not tells_nothing(one)):
        found[each["op"]] += each["input" if each["op"] == "all_gather" else "output"]["bytes"]
    return dict(found)
