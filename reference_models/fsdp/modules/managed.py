"""What one call of ``fully_shard`` takes care of: modules, parameters with their owners, and buffers.

A net of four modules, root(a(inner), b), where a is sharded already and b.weight is root.weight as well::

    managed modules       root, b                                       a and what is in it belong to another call
    managed parameters    weight with owners (root, weight), (b, weight)    once, even if it is shared
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from reference_models.fsdp.contract import state_of
from reference_models.fsdp.parameters.owner import Owner


def managed_modules(roots: Sequence[nn.Module]) -> list[nn.Module]:
    """All modules of the trees below ``roots``, each once, but for subtrees that are sharded or replicated already."""
    found: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        taken = state_of(module, "fully_shard", "replicate")
        if module in found or (module not in roots and taken is not None):
            return
        found[module] = None
        for child in module.children():
            visit(child)

    for root in roots:
        visit(root)
    return list(found)


def managed_parameters(
    modules: Iterable[nn.Module], ignored: frozenset[nn.Parameter] = frozenset()
) -> list[tuple[nn.Parameter, list[Owner]]]:
    """Each parameter of the modules once, in their order, with every module and name that has it.

    Raises ValueError for a parameter without dims: it has no rows to share out.
    """
    owners: dict[nn.Parameter, list[Owner]] = {}
    for module in modules:
        for name, parameter in module._parameters.items():
            if parameter is None or parameter in ignored:
                continue
            if parameter.dim() == 0:
                raise ValueError(f"fully_shard doesn't support scalar parameters: give {name} one dim of one element")
            owners.setdefault(parameter, []).append(Owner(module, name))
    return list(owners.items())


def managed_buffers(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Each buffer of the modules once."""
    return list({id(buffer): buffer for module in modules for buffer in module.buffers(recurse=False)}.values())


def move(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move plain tensors to ``device`` in place; what is on meta, or a DTensor, stays."""
    for tensor in tensors:
        if tensor.device == device or tensor.is_meta or isinstance(tensor, DTensor):
            continue
        if is_traceable_wrapper_subclass(tensor):  # its numbers are in other tensors, which ``data`` does not reach
            with torch.no_grad():
                moved = tensor.to(device)
                made = nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
            torch.utils.swap_tensors(tensor, made)
        else:
            tensor.data = tensor.to(device)
