"""What runs on ranks for gradient accumulation: steps of several backwards, and what each one communicates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from harness.worlds.rank import Rank
from suites.communication.communication_programs import sharded
from suites.gradients.accumulation import AccumulationCase, FineCase, fork
from suites.kit.cases import TrainingCase
from suites.kit.programs import apply, data_mesh, gradients, parameters, policy_of
from suites.oracle.situation import Step
from suites.training.offloading import policy


def accumulate(rank: Rank, case: AccumulationCase, how: str = "sync", **options: Any) -> dict[str, Any]:
    """Train; ``how`` names what is switched off until the last micro-batch: see ``switch``."""
    net = sharded(rank, case, **options)
    optimizer = case.optimizer(net.parameters())
    trace, traces, early = [], [], []
    for step in range(case.steps):
        losses = []
        for micro in range(case.micro):
            switch(case, net, how, last=micro == case.micro - 1)
            with rank.collectives() as entries:
                batch = step * case.micro + micro
                loss = case.loss(net(case.inputs(batch, rank.number).to(rank.device)), batch, rank.number)
                loss.backward()
            losses.append(loss.detach())
            traces.append(entries)
            early.append({name: gradient is not None for name, gradient in gradients(net).items()})
        optimizer.step()
        trace.append(Step(loss=torch.stack(losses), gradients=gradients(net), parameters=parameters(net)))
        optimizer.zero_grad(set_to_none=not case.is_kept(step))
    return {"trace": trace, "traces": traces, "early": early}


def switch(case: AccumulationCase, net: Any, how: str, last: bool) -> None:
    """Switch reductions, or only those across replicas, or resharding, off or on again; "none" leaves all as it is."""
    if how == "replicas":
        net.set_requires_all_reduce(last)
    elif how == "reshard":
        net.set_requires_gradient_sync(last)
        net.set_reshard_after_backward(last)
    elif how == "sync" and case.quiet == "some":
        net[case.sharded[0]].set_requires_gradient_sync(last)
    elif how == "sync":
        net.set_requires_gradient_sync(last, recurse=case.quiet == "all")


def accumulate_offloaded(rank: Rank, case: AccumulationCase) -> dict[str, Any]:
    """Train what rests on the CPU, in memory that is not pinned."""
    found = accumulate(rank, case, offload_policy=policy(rank, pinned=False))
    return {
        "trace": found["trace"],
        "devices": sorted({str(g.device) for g in found["trace"][-1]["gradients"].values()}),
    }


def accumulate_in_low_precision(rank: Rank, case: FineCase) -> Any:
    """One step whose micro-batches are computed in one dtype and reduced in another; its gradients."""
    net: Any = sharded(rank, case, mp_policy=policy_of(rank, case))
    for micro in range(2):
        net.set_requires_gradient_sync(micro == 1)
        case.loss(net(case.inputs(micro, rank.number).to(rank.device)), micro, rank.number).backward()
    return gradients(net)


def pipeline(rank: Rank, case: AccumulationCase) -> Any:
    """One forward ahead of one backward, as a stage of a pipeline has it; all may be unsharded explicitly before."""
    net: Any = sharded(rank, case)
    optimizer = case.optimizer(net.parameters())
    trace = []
    for step in range(case.steps):
        if case.by_hand:
            for module in (*(net[place] for place in case.sharded), net):
                module.unshard(async_op=True)
        losses: list[Any] = []
        for micro in range(case.micro + 1):
            if micro < case.micro:
                batch = step * case.micro + micro
                outputs = net(case.inputs(batch, rank.number).to(rank.device))
                losses.append(case.loss(outputs, batch, rank.number))
            if micro > 0:
                last = micro == case.micro
                net.set_is_last_backward(last)
                net.set_requires_gradient_sync(last)
                net.set_reshard_after_backward(last)
                losses[micro - 1].backward()
        optimizer.step()
        loss = torch.stack([each.detach() for each in losses])
        trace.append(Step(loss=loss, gradients=gradients(net), parameters=parameters(net)))
        optimizer.zero_grad()
    return trace


def two_backwards(rank: Rank, case: TrainingCase) -> Any:
    """One forward with two results, each of which goes backward by itself; the second is the last."""
    net: Any = fork(case)
    fully_shard: Any = rank.implementation.fully_shard
    for module in (net.left, net.right, net):
        fully_shard(module, mesh=data_mesh(rank, case), reshard_after_forward=case.reshard_after_forward)
    found = []
    for _ in range(2):
        left, right = net(case.inputs(0, rank.number).to(rank.device))
        net.set_is_last_backward(False)
        case.loss(left, 0, rank.number).backward(retain_graph=True)
        net.set_is_last_backward(True)
        case.loss(right, 1, rank.number).backward()
        found.append(gradients(net))
        net.zero_grad()
    return found


def switched(rank: Rank, case: AccumulationCase) -> list[bool]:
    """Switch reductions off for the tree and on for the root alone, then all on; whether block 0 had a gradient."""
    net: Any = apply(rank, case, case.build())
    found = []
    for root, recurse in ((False, True), (True, False), (True, True)):
        net.set_requires_gradient_sync(root, recurse=recurse)
        run(rank, case, net)
        block = net[case.sharded[0]]
        found.append(any(parameter.grad is not None for parameter in block.parameters()))
    return found


def run(rank: Rank, case: AccumulationCase, net: nn.Module) -> None:
    """A forward and a backward."""
    case.loss(net(case.inputs(0, rank.number).to(rank.device)), 0, rank.number).backward()
