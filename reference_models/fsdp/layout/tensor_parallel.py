"""Parameters that tensor parallelism has cut before: DTensors on a mesh of their own axis, beside the data axes.

Four rows over tp = 2 and then dp = 2. Tensor parallelism gives tp rank 0 the rows 0 1 and tp rank 1 the rows 2 3;
data parallelism cuts each of these again::

    (dp 0, tp 0): row 0    (dp 0, tp 1): row 2
    (dp 1, tp 0): row 1    (dp 1, tp 1): row 3

So along dp a rank's rows are strided: ``_StridedShard(0, split_factor=2)`` says that tp has cut dim 0 into 2 before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Placement, Shard, _StridedShard

from reference_models.fsdp.layout.mesh import DataMesh


@dataclass(frozen=True)
class Layout:
    """A DTensor without its numbers: mesh, placements, and the size and stride of the whole."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    shape: torch.Size
    stride: tuple[int, ...]
    data_axes: tuple[int, ...] = ()  # on which gradients are reduced by us, not by DTensor
    _specs: dict[torch.dtype, DTensorSpec] = field(default_factory=dict, compare=False, repr=False)

    def wrap(self, local: Tensor) -> DTensor:
        """The DTensor of which ``local`` is this rank's part."""
        spec = self._specs.get(local.dtype)
        if spec is None:
            spec = DTensorSpec(self.mesh, self.placements, TensorMeta(self.shape, self.stride, local.dtype))
            self._specs[local.dtype] = spec
        return DTensor(local, spec, requires_grad=False)

    def adopt(self, made: nn.Parameter) -> None:
        """Let what is wrapped from now on share a parameter's spec: torch finds such equal without comparing."""
        assert isinstance(made, DTensor)
        self._specs[made.dtype] = made._spec


def layout_of(parameter: nn.Parameter, data_axes: tuple[int, ...] = ()) -> Layout | None:
    """The layout that a parameter had before it was sharded; None for a plain one."""
    if not isinstance(parameter, DTensor):
        return None
    whole = (parameter.size(), parameter.stride())
    return Layout(parameter.device_mesh, tuple(parameter.placements), *whole, data_axes)


def check_beside(name: str, parameter: nn.Parameter, data: DataMesh) -> None:
    """Raise ValueError or NotImplementedError for a DTensor whose axes cannot be put beside those of a data mesh."""
    if not isinstance(parameter, DTensor):
        return
    if len(parameter.placements) > 2:
        raise NotImplementedError(f"expected {name!r} on at most two axes besides data, got {parameter.placements}")
    axes, own = parameter.device_mesh.mesh_dim_names, data.mesh.mesh_dim_names
    if axes is None or own is None or set(axes) & set(own):
        raise ValueError(
            f"parameter {name!r} is a DTensor on axes {axes} already, and cannot be sharded over {own} as well: shard "
            "inner modules before outer ones, or give other axes of the same mesh, all of which have names"
        )


def sharded_layout(before: Layout, data: DataMesh, dim: int) -> Layout:
    """The layout of a parameter once its dim ``dim`` is cut over the data mesh too."""
    cuts = 1
    for axis, placement in enumerate(before.placements):
        if isinstance(placement, Shard) and placement.dim == dim:
            cuts *= before.mesh.size(axis)
    own = _StridedShard(dim, split_factor=cuts) if cuts > 1 else Shard(dim)
    mesh = DeviceMesh._concatenate([data.mesh, before.mesh])
    return Layout(mesh, (*data.placements(own), *before.placements), before.shape, before.stride)


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; a plain tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def local_gradient(gradient: Tensor, layout: Layout | None, reduce_dtype: torch.dtype | None) -> Tensor:
    """This rank's part of a gradient, laid out as its parameter is on all axes but those that are for data.

    What other ranks have to be added to it is added in ``reduce_dtype``, unless its own dtype is wider.
    """
    if layout is None:
        return gradient
    assert isinstance(gradient, DTensor), "the gradient of a DTensor parameter is a DTensor"
    wanted = list(layout.placements)
    for axis in layout.data_axes:
        wanted[axis] = gradient.placements[axis]
    is_sum = any(now.is_partial() and now != then for now, then in zip(gradient.placements, wanted, strict=True))
    if is_sum and reduce_dtype is not None:
        gradient = cast(DTensor, gradient.to(torch.promote_types(gradient.dtype, reduce_dtype)))
    return gradient.redistribute(placements=wanted).to_local()
