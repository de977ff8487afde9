"""Probes of the operations by which FSDP moves parameters in and out of the memory that is communicated.

Two parameters [1 2] and [3 4 5], one copied beside the other, are [1 2 3 4 5], and split again the same two.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from harness.doctor.probes.answer import Here, Probe, require

#: The types that torch's FSDP moves inputs to, besides the PrivateUse1 backend's, in torch 2.11 to 2.15.
_MOVED_TO = ("cuda", "hpu", "xpu", "mtia")


def inputs_are_moved(here: Here) -> str:
    """Row 9."""
    if here.device_type not in (*_MOVED_TO, torch._C._get_privateuse1_backend_name()):
        raise NotImplementedError(f"{here.device_type!r} is not in torch's list")
    return ""


def resizing(here: Here) -> str:
    """Row 10."""
    tensor = torch.full((6,), 2.0, device=here.device)
    storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
    for wanted in (0, size, 0, size):
        storage.resize_(wanted)
        require(storage.size() == wanted, f"after resize_({wanted}) the storage has {storage.size()} bytes")
        require(
            tuple(tensor.shape) == (6,), f"after resize_({wanted}) of its storage a tensor has shape {tensor.shape}"
        )
    tensor.fill_(3)
    _same("a tensor written after its storage was resized", tensor, [3.0] * 6)
    return ""


def copying_many(here: Here) -> str:
    """Row 11."""
    for to in (torch.float32, torch.bfloat16, torch.float16):
        for of in (torch.float32, torch.bfloat16, torch.float16):
            targets = [torch.zeros(2, dtype=to, device=here.device), torch.zeros(3, dtype=to, device=here.device)]
            sources = [_numbers(here, 1, 3, of), _numbers(here, 3, 6, of)]
            torch._foreach_copy_(targets, sources)
            _same(f"_foreach_copy_ from {of} to {to}", torch.cat([t.float() for t in targets]), [1, 2, 3, 4, 5])
    return ""


def cutting(here: Here) -> str:
    """Row 12."""
    outs = [torch.zeros(2, 1, device=here.device), torch.zeros(2, 2, device=here.device)]
    torch.split_with_sizes_copy(_numbers(here, 1, 7).view(2, 3), [1, 2], dim=1, out=outs)
    _same("split_with_sizes_copy", torch.cat([out.flatten() for out in outs]), [1, 4, 2, 3, 5, 6])
    out = torch.full((2, 3), 9.0, device=here.device)
    torch._chunk_cat([_numbers(here, 1, 4), _numbers(here, 4, 6)], 0, 2, out=out)
    _same("_chunk_cat", out.flatten(), [1, 2, 4, 3, 0, 5])
    whole = _numbers(here, 0, 8)
    _same("as_strided", torch.as_strided(whole, (2, 2), (4, 1), 1).flatten(), [1, 2, 5, 6])
    whole.narrow(0, 2, 2).fill_(-1)
    _same("a tensor whose part by narrow was filled", whole, [0, 1, -1, -1, 4, 5, 6, 7])
    _views_of_bytes(here)
    return ""


def _views_of_bytes(here: Here) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        numbers = _numbers(here, 1, 5, dtype)
        moved = numbers.view(torch.uint8).clone()
        require(moved.numel() == 4 * dtype.itemsize, f"4 numbers of {dtype} are {moved.numel()} bytes by view")
        _same(f"{dtype} that went through bytes", moved.view(dtype).float(), [1, 2, 3, 4])


def own_operators(here: Here) -> str:
    """Row 13."""
    importlib.import_module("torch.distributed.fsdp")  # defines them
    operators = torch.ops.fsdp
    gathered = torch.zeros(10, device=here.device)
    sources = [_numbers(here, 1, 3), _numbers(here, 3, 6)]
    part, whole = operators.all_gather_copy_in(sources, gathered, [2, 3], 5, 1)
    _same("the input part that all_gather_copy_in gives", part, [1, 2, 3, 4, 5])
    _same("the output of all_gather_copy_in", whole, [0, 0, 0, 0, 0, 1, 2, 3, 4, 5])
    inside = part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    require(inside, "all_gather_copy_in gives an input that is no part of its output")
    outs = [torch.zeros(2, 2, device=here.device), torch.zeros(2, 3, device=here.device)]
    operators.split_with_sizes_copy(_numbers(here, 0, 10).view(2, 5), [2, 3], 1, out=outs)
    _same("fsdp::split_with_sizes_copy", torch.cat([o.flatten() for o in outs]), [0, 1, 5, 6, 2, 3, 4, 7, 8, 9])
    out = torch.full((2, 3), 9.0, device=here.device)
    operators.chunk_cat([_numbers(here, 1, 4), _numbers(here, 4, 6)], 0, 2, out=out)
    _same("fsdp::chunk_cat", out.flatten(), [1, 2, 4, 3, 0, 5])
    return ""


def autograd(here: Here) -> str:
    """Row 14."""
    _keeps_versions(here)
    leaf = _numbers(here, 1, 4).requires_grad_()
    (leaf * leaf).sum().backward()
    assert leaf.grad is not None
    _same("the gradient of the sum of x², x = [1 2 3],", leaf.grad, [2, 4, 6])
    leaf.grad = torch.zeros_like(leaf)
    called: list[str] = []
    handle = leaf.register_post_accumulate_grad_hook(
        lambda _: torch.autograd.Variable._execution_engine.queue_callback(lambda: called.append("end"))
    )
    (leaf * 2).sum().backward()
    handle.remove()
    require(called == ["end"], f"a callback queued in backward was called {len(called)} times, not once")
    _same("a gradient added to one that was set", leaf.grad, [2, 2, 2])
    return ""


def _keeps_versions(here: Here) -> None:
    """A tensor saved for backward may be freed and filled again with the same numbers in between."""
    weight, x = _numbers(here, 1, 4), _numbers(here, 4, 7).requires_grad_()
    out = (weight * x).sum()
    version = weight._version
    preserved: Any = vars(torch.autograd)["_unsafe_preserve_version_counter"]  # private, but what FSDP calls
    with torch.no_grad(), preserved(weight):
        weight.zero_()
        weight.copy_(_numbers(here, 1, 4))
    require(weight._version == version, f"the version counter went from {version} to {weight._version}")
    out.backward()
    assert x.grad is not None
    _same("the gradient of w·x, w = [1 2 3],", x.grad, [1, 2, 3])


def _numbers(here: Here, start: int, end: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(start, end).to(dtype).to(here.device)


def _same(what: str, got: Tensor, want: Sequence[float]) -> None:
    numbers = [float(number) for number in got.detach().float().cpu().tolist()]
    require(numbers == [float(number) for number in want], f"{what} is {numbers}, not {[float(n) for n in want]}")


PROBES: dict[str, Probe] = {
    "9": inputs_are_moved,
    "10": resizing,
    "11": copying_many,
    "12": cutting,
    "13": own_operators,
    "14": autograd,
}
