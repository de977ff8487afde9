"""One parameter in its two forms, and which of them the module sees.

[Note: two forms]
*Sharded*: a DTensor parameter of which this rank holds some rows. It is what the optimizer, the state dict and the user
see between passes; it keeps its identity, and gets the reduced gradient. Its rows lie in ``packed``, a flat tensor with
the padding that makes all ranks' parts equally long, so that a gather needs no copy for padding.

*Unsharded*: a plain parameter (or one over the tensor-parallel mesh) with all rows, which autograd sees during forward
and backward. It is made once; only its memory is freed and allocated again. Autograd may hold on to it between forward
and backward: when it is filled again, tensors saved for backward have their values again. It is filled through
``.data``, which autograd does not count as a change.

Two ranks, rows [1 2 3 4 5]::

    sharded     rank 0: DTensor with local [1 2 3], packed [1 2 3]     rank 1: local [4 5], packed [4 5 0]
    unsharded   both:   [1 2 3 4 5], the first five of six numbers in memory
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from reference_models.fsdp.communication.collectives import Piece
from reference_models.fsdp.layout.mesh import DataMesh
from reference_models.fsdp.layout.sharding import Cut
from reference_models.fsdp.layout.spmd import layout_over
from reference_models.fsdp.layout.tensor_parallel import Layout, layout_of, local_gradient, local_of
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy
from reference_models.fsdp.offload import CPUOffloadPolicy, OffloadPolicy, at_rest, fetched, landing, pinned
from reference_models.fsdp.parameters.extension import Extension, carry_hooks, has_extension, regrow
from reference_models.fsdp.parameters.owner import Owner

#: A token for each parameter that has been sharded, by which two groups that share it are recognised.
_origins: WeakIdKeyDictionary = WeakIdKeyDictionary()


class ManagedParameter:
    """A parameter that is sharded over a data mesh; see [Note: two forms]. Its owners see it once it is registered."""

    def __init__(
        self,
        parameter: nn.Parameter,
        owners: list[Owner],
        mesh: DataMesh,
        cut: Cut,
        offload: OffloadPolicy,
        precision: MixedPrecisionPolicy,
    ) -> None:
        self.owners = owners
        self.origin: object = _origins.setdefault(parameter, object())
        self.name = owners[0].name  # relative to the root, once that is known
        self.mesh = mesh
        self.offload = offload
        self.precision = precision
        self.before: Layout | None = layout_of(parameter, mesh.spmd.data_axes if mesh.spmd is not None else ())
        self.cut = cut
        self.layout = layout_over(mesh, parameter, self.before, cut.dim)
        self.grad_dtype = None if parameter.grad_dtype == parameter.dtype else parameter.grad_dtype  # if it was set
        self.packed = at_rest(cut.padded(cut.take(local_of(parameter).detach(), mesh.shard.rank)), offload)
        self._trains = parameter.requires_grad
        self.sharded = self._made_sharded()
        self._local = local_of(self.sharded)
        self._full: Tensor | None = None
        self.unsharded: nn.Parameter | None = None
        self.extension: Extension | None = None
        self.find_extension()

    # The sharded form.

    @property
    def dtype(self) -> torch.dtype:
        """The dtype at rest."""
        return self.packed.dtype

    @cached_property
    def rows(self) -> int:
        """How many rows this rank holds."""
        return self.cut.rows(self.mesh.shard.rank)[1]

    def _made_sharded(self) -> nn.Parameter:
        with torch.no_grad():
            made = nn.Parameter(self.layout.wrap(self.cut.unpadded(self.packed, self.rows)), self._trains)
        self.layout.adopt(made)
        return self._asking(made)

    def _asking(self, form: nn.Parameter) -> nn.Parameter:
        """A form that has gradients of the dtype that the user has asked for."""
        if self.grad_dtype is not None:
            form.grad_dtype = self.grad_dtype
        return form

    def refresh(self) -> bool:
        """Notice what the user did to the sharded form: a parameter put in its place, or other memory behind it.

        Both happen in ``load_state_dict(assign=True)``, ``to_empty``, ``to`` and their like. Returns whether anything
        has been copied, which is on the current stream.
        """
        module, name = self.owners[0]
        registered = module._parameters[name]
        assert registered is not None
        if registered is self.sharded and local_of(registered) is self._local:
            return False
        received = (registered.shape, registered.placements) if isinstance(registered, DTensor) else "a plain tensor"
        if received != (wanted := (self.layout.shape, self.layout.placements)):
            raise ValueError(
                f"parameter {self.name!r} of a sharded module was replaced: expected a DTensor of shape and placements "
                f"{wanted}, got {received}; see torch.distributed.tensor.distribute_tensor"
            )
        self.sharded = self._asking(registered)
        self.layout.adopt(registered)
        with torch.no_grad():
            self._repack(local_of(registered))
        self.register(registered)
        return True

    def _repack(self, local: Tensor) -> None:
        kind = (self.packed.device.type, self.packed.dtype)
        is_packed = local.numel() == self.cut.padded_numel and local.is_contiguous()
        flat = local.detach().view(-1) if is_packed else self.cut.padded(local.detach())
        self.packed = pinned(flat, self.offload)
        whole = is_packed and self.packed is flat
        self._local = local if whole else self.cut.unpadded(self.packed, self.rows)
        if not whole:
            carry_hooks(local, self._local)
            assert isinstance(self.sharded, DTensor)
            self.sharded._local_tensor = self._local
        if kind != (self.packed.device.type, self.packed.dtype):
            self._full = self.unsharded = self.extension = None
        self.find_extension()

    def find_extension(self) -> None:
        """Notice whether the sharded tensor has hooks of its own for gathering."""
        if has_extension(self._local) != (self.extension is not None):
            self.extension = None if self.extension else Extension(self.cut, self.mesh, self.owners[0].module)

    def register(self, form: nn.Parameter) -> None:
        """Show a form to all owners; users may have frozen or thawed the one they had, or the sharded one."""
        module, name = self.owners[0]
        now = (module._parameters[name], self.sharded)
        if any(each is not None and each.requires_grad != self._trains for each in now):
            self._trains = not self._trains
        for each in (form, self.sharded):
            if each.requires_grad != self._trains:  # function transforms allow no call
                each.requires_grad_(self._trains)
        for owner in self.owners:
            owner.show(form)

    # The unsharded form.

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype to gather and compute in: what the policy asks for, of floating parameters only."""
        return (self.precision.param_dtype if self.dtype.is_floating_point else None) or self.dtype

    def pieces(self) -> list[Piece]:
        """What this rank sends in a gather: its packed rows, or what its own hooks make of them."""
        if self.extension is not None:
            sent = self.extension.send(fetched(self._local, self.offload, self.mesh.device), self.precision)
            return [Piece(each, each.dtype) for each in sent]
        return [Piece(fetched(self.packed, self.offload, self.mesh.device), self.compute_dtype)]

    def take(self, columns: Iterator[Tensor], cut: Cut) -> list[tuple[Tensor, Tensor]]:
        """Take what those have sent who ``cut`` this parameter so, row by row: what is still to be copied, and whence.

        Hooks of its own copy by themselves.
        """
        if self.extension is None:
            full, parts = self._allocated(), next(columns)
            if cut is not self.cut:  # fewer parts need no more padding
                full = full.view(-1)[: cut.joined_shape.numel()].view(cut.joined_shape)
                parts = parts.reshape(cut.parts, -1)
            return [(full, cut.joined(parts))]
        with torch.no_grad():
            if self.unsharded is None:
                self.unsharded = self._made_unsharded(self.extension.build(self._local, columns, self.compute_dtype))
            else:
                self.extension.fill(self._local, columns, self.compute_dtype, self.unsharded)
        return []

    def whole(self) -> Tensor:
        """The numbers of the unsharded form."""
        assert self._full is not None
        return self._full.view(-1)[: self.cut.shape.numel()].view(self.cut.shape)

    def _allocated(self) -> Tensor:
        """The unsharded form's memory, for all ranks' parts with their padding."""
        if self._full is None:  # at first, or the dtype has changed: see _repack
            self._full = torch.empty(self.cut.joined_shape, dtype=self.compute_dtype, device=self.mesh.device)
            self._memory = self._full.untyped_storage()
            self.unsharded = self._made_unsharded(self.whole().data)
        else:
            regrow(self._memory, self._full.nbytes)
        return self._full

    def _made_unsharded(self, whole: Tensor) -> nn.Parameter:
        with torch.no_grad():
            seen = whole if self.before is None else self.before.wrap(whole)
            return self._asking(nn.Parameter(seen, self.sharded.requires_grad))

    def show_unsharded(self) -> None:
        """Register the unsharded form, which has been filled."""
        assert self.unsharded is not None
        self.register(self.unsharded)

    def free(self) -> None:
        """Free the unsharded form's memory."""
        if self.extension is not None:
            self.extension.free()
        if self._full is not None:
            self._memory.resize_(0)

    # Gradients.

    @property
    def has_hooks(self) -> bool:
        """Whether the user has hooked something to the sharded form, to be called when its gradient is there."""
        return bool(getattr(self.sharded, "_post_accumulate_grad_hooks", None))

    def take_gradient(self) -> Tensor | None:
        """The gradient that autograd left on the unsharded form, as this rank's tensor; it is there no more."""
        if self.unsharded is None or self.unsharded.grad is None:
            return None
        gradient, self.unsharded.grad = self.unsharded.grad, None
        return local_gradient(gradient, self.before, self.precision.reduce_dtype)

    def add_gradient(self, part: Tensor) -> Any:
        """Add a reduced part, flat with padding, to the sharded form's gradient; then run its hooks.

        Returns the event to wait for of a gradient that is on its way to the CPU, else None.
        """
        own, landed = self.cut.unpadded(part, self.rows).to(self.grad_dtype or self.dtype), None
        if isinstance(self.offload, CPUOffloadPolicy):
            own, landed = landing(own, self.offload)
            if landed is not None and (self.sharded.grad is not None or self.has_hooks):  # it is read now
                landed.synchronize()
                landed = None
        if self.sharded.grad is None:
            self.sharded.grad = self.layout.wrap(own)
        else:
            local_of(self.sharded.grad).add_(own)
        for hook in list(self.sharded._post_accumulate_grad_hooks.values()) if self.has_hooks else ():
            hook(self.sharded)
        return landed
