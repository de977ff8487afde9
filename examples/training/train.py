"""Train the decoder: sharded over the ranks that torchrun starts, or unsharded in one process with the same batches."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as read_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as write_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.utils.parametrize import register_parametrization

import reference_models.fsdp
from examples.training.model import SIZES, Decoder
from examples.training.text import batch

IMPLEMENTATIONS: dict[str, Any] = {"torch": torch.distributed.fsdp, "reference": reference_models.fsdp}
SEQUENCES, MICRO_BATCHES, RATE, LARGEST_NORM = 8, 2, 3e-4, 1.0


class ToBfloat16(nn.Module):
    """A float32 parameter as its module sees it; autograd casts the gradient back, and sums in float32."""

    def forward(self, parameter: Tensor) -> Tensor:
        """In bfloat16, with the same shape."""
        return parameter.bfloat16()


def in_bfloat16(net: nn.Module) -> None:
    """Compute in bfloat16 with parameters and gradients in float32, in one process."""
    for module in list(net.modules()):
        for name, _ in list(module.named_parameters(recurse=False)):
            register_parametrization(module, name, ToBfloat16(), unsafe=True)


def sharded(net: Decoder, implementation: Any, device: torch.device) -> None:
    """The same over all ranks: each block is a group, and the rest another one."""
    policy = implementation.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*net.blocks, net):
        implementation.fully_shard(module, mesh=mesh, mp_policy=policy)


def backward(net: Any, tokens: Tensor, rank: int, ranks: int) -> Tensor:
    """Gradients of a step's batch, reduced with the last of its micro-batches. Returns this rank's part of the loss."""
    total = torch.zeros((), device=tokens.device)
    for number, micro_batch in enumerate(tokens.chunk(MICRO_BATCHES)):
        mine = micro_batch.chunk(ranks)[rank]
        if ranks > 1:
            net.set_requires_gradient_sync(number == MICRO_BATCHES - 1)
        loss = net(mine) / MICRO_BATCHES
        loss.backward()
        total += loss.detach() / ranks
    return total


def train(options: argparse.Namespace) -> None:
    """Train from the first step, or that of a checkpoint, and write a line of JSON for each step."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if SEQUENCES % (MICRO_BATCHES * ranks):
        raise ValueError(f"{SEQUENCES} sequences in {MICRO_BATCHES} micro-batches: start 1, 2 or 4 ranks, not {ranks}")
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    device = torch.device(options.device)
    torch.manual_seed(0)
    net = Decoder(*SIZES[options.size]).to(device)
    if options.implementation == "none":
        in_bfloat16(net)
    else:
        sharded(net, IMPLEMENTATIONS[options.implementation], device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    first = load(options.resume, net, optimizer) if options.resume else 0
    for step in range(first, options.until):
        optimizer.zero_grad()
        loss = backward(net, batch(step, SEQUENCES, SIZES[options.size][2]).to(device), rank, ranks)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), LARGEST_NORM)
        optimizer.step()
        if ranks > 1:
            dist.all_reduce(loss)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if rank == 0:
            with options.losses.open("a" if step else "w") as losses:
                print(json.dumps({"step": step, "ranks": ranks, "loss": float(loss), "norm": float(norm)}), file=losses)
    if options.save:
        write_checkpoint(state(net, optimizer, options.until), checkpoint_id=options.save)


def state(net: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    """What a checkpoint holds: parameters and the optimizer's states, sharded as they are here, and the next step."""
    parameters, states = get_state_dict(net, optimizer)
    return {"parameters": parameters, "optimizer": states, "step": step}


def load(folder: Path, net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Go on from a checkpoint, of however many ranks. Returns the next step."""
    found = state(net, optimizer, 0)
    read_checkpoint(found, checkpoint_id=folder)
    set_state_dict(net, optimizer, model_state_dict=found["parameters"], optim_state_dict=found["optimizer"])
    return int(found["step"])


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--implementation", choices=[*IMPLEMENTATIONS, "none"], default="torch")
    parser.add_argument("--size", choices=SIZES, default="100m")
    gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if gpus else "cpu")
    parser.add_argument("--until", type=int, default=24, metavar="STEP", help="train until this step (default 24)")
    parser.add_argument("--losses", type=Path, required=True, metavar="FILE", help="where a line a step is written")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write a checkpoint at the end")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="begin with the checkpoint in this folder")
    options = parser.parse_args(words)
    if options.implementation == "none" and (options.save or options.resume):
        parser.error("checkpoints are of ranks: --save and --resume need --implementation torch or reference")
    return options


def main() -> None:
    """What torchrun starts on each rank, or python for the unsharded model."""
    options = arguments()
    if options.implementation != "none":
        dist.init_process_group()
    train(options)
    if options.implementation != "none":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
