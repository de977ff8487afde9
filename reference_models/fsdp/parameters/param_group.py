"""Parameters that are communicated together: gathered before use, freed after it, their gradients reduced at once.

A group is in one of three forms. In each pass::

    SHARDED ──unshard──▶ (gathering) ──wait──▶ UNSHARDED ──reshard──▶ SHARDED, or SHARDED_POST_FORWARD

Four ranks, weight [1 2 3 4] and bias [5 6 7 8] in one group: rank 0 has 1 and 5, sends [1 5] in one gather, and after
backward gets the means of its rows of both gradients from one reduce-scatter.
"""

from __future__ import annotations

from contextlib import nullcontext
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from reference_models.fsdp.autograd import call_before_adding, unseen_by_modes
from reference_models.fsdp.communication.collectives import Gathering, OwnPieces, Parcel, Reduction, division, gather
from reference_models.fsdp.communication.lane import HERE, Lane, passed
from reference_models.fsdp.communication.reduction_queue import ReductionQueue
from reference_models.fsdp.layout.mesh import DataMesh
from reference_models.fsdp.mixed_precision import MixedPrecisionPolicy
from reference_models.fsdp.options import GroupOptions
from reference_models.fsdp.parameters.gradient_rows import rows_of, to_keep
from reference_models.fsdp.parameters.param import ManagedParameter
from reference_models.fsdp.parameters.smaller_mesh import PostForwardShards


class Form(Enum):
    """What the modules see, and what is in memory."""

    SHARDED = "sharded"  # DTensors; this rank's rows
    SHARDED_POST_FORWARD = "sharded post forward"  # DTensors over a smaller mesh; the rows of both
    UNSHARDED = "unsharded"  # plain tensors; everything


class ParameterGroup:
    """The parameters of one ``fully_shard`` call on one mesh."""

    def __init__(
        self,
        parameters: list[ManagedParameter],
        mesh: DataMesh,
        precision: MixedPrecisionPolicy,
        options: GroupOptions,
    ) -> None:
        self.parameters = parameters
        self.mesh = mesh
        self.precision = precision
        self.options = options
        self.form = Form.SHARDED
        self._kept: PostForwardShards | None = None  # in the form SHARDED_POST_FORWARD
        self._parcel: Parcel | None = None  # what this rank sends, where that is what rests
        self._gathering: Gathering | OwnPieces | None = None
        self._lane = HERE
        self._hooks_ran: Any = None  # an event after hooks that may have changed parameters, beside what computes
        self._landing: list[Any] = []  # events after which gradients are on the CPU
        self._accumulated: dict[ManagedParameter, Tensor] = {}
        self._partial: Reduction | None = None  # reduced among shards, not yet across replicas
        self._is_put_off = False  # whether the last backward has left gradients as they are, unsharded

    def set_options(self, options: GroupOptions) -> None:
        """Go by these from now on."""
        self.options = options

    @unseen_by_modes
    def look_again(self) -> None:
        """Notice what has been done to the sharded parameters until now, their hooks for gathering included."""
        self._parcel = None
        for parameter in self.parameters:
            parameter.refresh()
            parameter.find_extension()

    # Gathering.

    @unseen_by_modes
    def unshard(self, lane: Lane = HERE, async_op: bool = False) -> bool:
        """Start gathering on a lane, unless all is there or on its way; whether it has been started.

        With ``async_op`` a user's all-gather is asked to return before its result is there.
        """
        if self._gathering is not None or self.form is Form.UNSHARDED:
            return False
        self._lane = lane
        async_op |= self.options.unshards_async
        kept, device, comm = self._kept, self.mesh.device, self.options.all_gather
        is_copied = [parameter.refresh() for parameter in self.parameters if kept is None]
        if kept is not None or any(is_copied):
            lane.follow()  # what is kept, or has been replaced, was copied on the current stream
        if self._hooks_ran is not None:
            lane.follow(self._hooks_ran)
            self._hooks_ran = None
        with lane.beside():
            if kept is not None:
                self._gathering = kept.gather(device, comm, async_op)
            else:
                parcel = self._made_parcel() if self._parcel is None or any(is_copied) else self._parcel
                self._gathering = gather(parcel, self.mesh.shard, device, comm, async_op)
        return True

    def _made_parcel(self) -> Parcel:
        """What this rank sends; the same each time, unless it is made for each gather."""
        pieces = [piece for parameter in self.parameters for piece in parameter.pieces()]
        sent, resting = [id(numbers) for numbers, _ in pieces], [id(parameter.packed) for parameter in self.parameters]
        parcel = Parcel(pieces)
        self._parcel = parcel if sent == resting else None
        return parcel

    @unseen_by_modes
    def wait(self) -> None:
        """Wait for a gather under way, and let the modules see the unsharded parameters."""
        if self._gathering is None:
            return
        gathering, self._gathering = self._gathering, None
        self._lane.lead()
        columns = gathering.columns()
        kept = self._kept
        copies = [copy for p in self.parameters for copy in p.take(columns, kept.cut(p) if kept else p.cut)]
        if copies:
            torch._foreach_copy_([to for to, _ in copies], [source for _, source in copies])
        self._kept = None
        self._lane.take_back(gathering)
        self.form = Form.UNSHARDED
        for parameter in self.parameters:
            parameter.show_unsharded()

    @unseen_by_modes
    def reshard(self) -> None:
        """Free the unsharded parameters and let the modules see the sharded ones; a gather under way is used up."""
        if self._gathering is not None:
            self.wait()
        self._kept = None
        if self.form is not Form.SHARDED:
            self.form = Form.SHARDED
            for parameter in self.parameters:
                parameter.register(parameter.sharded)
                if not self.options.keeps_memory:
                    parameter.free()

    def after_forward(self, is_root: bool) -> None:
        """Free what forward has used, all or all but the rows of a smaller mesh, or nothing."""
        frees = self.options.reshard_after_forward
        if isinstance(frees, DataMesh):
            self._reshard_over(frees)
        elif frees or (frees is None and not is_root):
            self.reshard()

    @unseen_by_modes
    def _reshard_over(self, mesh: DataMesh) -> None:
        """Keep the rows of a smaller mesh, and let the modules see them, until backward needs everything."""
        if self.form is Form.UNSHARDED:
            self._kept = PostForwardShards(mesh, self.parameters, frees=not self.options.keeps_memory)
            self.form = Form.SHARDED_POST_FORWARD

    # Reducing.

    def after_backward(self, queue: ReductionQueue, is_over: bool = False) -> bool:
        """Start reducing the gradients that backward has left, or keep them for later; then free the parameters.

        Whether that is all: what earlier passes left to be all-reduced waits for gradients, until backward ``is_over``.
        """
        gradients = self._take_gradients()
        if self.options.reshard_after_backward:
            self.reshard()  # before there is memory for reducing
        self._is_put_off = not self.options.reduces
        if self._is_put_off:
            self._accumulated = to_keep(gradients, self.precision)
            return True
        if self._partial is not None and not (gradients or self.options.reduces_unused or is_over):
            return False
        self._start_reduction(gradients, queue)
        return True

    def catch_up(self, queue: ReductionQueue) -> None:
        """Between backwards: reduce what was put off, if it may be now, and free what may be freed."""
        if self._is_put_off:
            self.after_backward(queue, is_over=True)
        elif self.options.reshard_after_backward:
            self.reshard()

    @property
    def is_partial(self) -> bool:
        """Whether gradients are, or would be now, reduced among shards and not across replicas."""
        return self._partial is not None or (self._is_put_off and not self._is_whole)

    @property
    def _is_whole(self) -> bool:
        """Whether a reduction is across replicas, too, or there are none."""
        return self.options.all_reduces or self.mesh.replicate.group is None

    def _take_gradients(self) -> dict[ManagedParameter, Tensor]:
        """New gradients, added to those kept from passes without reduction."""
        kept, self._accumulated = self._accumulated, {}
        for parameter in self.parameters:
            gradient = parameter.take_gradient()
            if gradient is not None:
                kept[parameter] = kept[parameter].add_(gradient) if parameter in kept else gradient
        return kept

    def _start_reduction(self, gradients: dict[ManagedParameter, Tensor], queue: ReductionQueue) -> None:
        earlier, self._partial, options = self._partial, None, self.options
        pending = earlier.sizes if earlier is not None else ()
        unused = options.reduces_unused
        reduced = [p for p in self.parameters if p in gradients or p in pending or (unused and p.sharded.requires_grad)]
        if not reduced:
            return
        queue.make_room()
        rows = rows_of(reduced, gradients, self.mesh, self.precision, options.reduce_scatter)
        reduction = Reduction(
            sizes={parameter: parameter.cut.padded_numel for parameter in reduced},
            mesh=options.reduce_mesh or self.mesh,
            divide=division(self.mesh.size, options.divide_factor, rows.dtype, options.force_sum),
            comm=options.reduce_scatter,
            is_whole=self._is_whole,
            earlier=earlier,
            at_once=any(parameter.has_hooks for parameter in reduced),
        )
        queue.start(reduction, rows, self if self._is_whole else None)
        self._partial = None if self._is_whole else reduction
        for parameter in reduced if self.mesh.device.type != "cpu" else ():  # the loss may take the sharded form, too
            call_before_adding(parameter.sharded, queue.finish, self.land)

    def receive(self, reduction: Reduction) -> None:
        """Give the sharded parameters what a reduction has made of their gradients."""
        part = reduction.finish()
        if self.options.all_reduce_hook is not None:
            self.options.all_reduce_hook(part)
        first, *others = {parameter.grad_dtype or parameter.dtype for parameter in reduction.sizes}
        parts: dict[ManagedParameter, Tensor] = reduction.parts(None if others else first)
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():
            landings = [parameter.add_gradient(own) for parameter, own in parts.items()]
            self._landing += [landed for landed in landings if landed is not None]
        if any(parameter.has_hooks for parameter in parts):
            self._hooks_ran = passed(self.mesh.device)

    def land(self) -> None:
        """Have the host wait for gradients that are on their way to the CPU."""
        for landed in self._landing:
            landed.synchronize()
        self._landing.clear()

    def forget(self) -> None:
        """After an iteration that failed: drop its gradients and free the parameters."""
        self._accumulated, self._partial, self._is_put_off = {}, None, False
        for parameter in self.parameters:
            parameter.take_gradient()
        self.reshard()
