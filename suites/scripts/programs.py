"""What a script does on ranks besides what any situation does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from suites.generated.net_programs import spread_net
from suites.kit.programs import offload_policy
from suites.oracle.layout import is_dtensor, seen
from suites.oracle.sharded import Sharded, State
from suites.scripts.cases import guided, owners

FULL = StateDictOptions(full_state_dict=True)


class ShardedScript(Sharded):
    """A sharded net in the middle of a script, on one rank."""

    def made(self) -> Any:
        """The net, sharded as the case says."""
        return spread_net(self.rank, self.case, self.case.build().to(self.rank.device), **self.policies())

    def places(self) -> list[str]:
        """The first module of each group."""
        return list(dict.fromkeys(owners(self.case).values()))

    def policies(self) -> State:
        """Those that the case asks for."""
        options, subject = State(), self.rank.implementation
        if self.case.computed:
            dtype = getattr(torch, self.case.computed)
            options["mp_policy"] = subject.mixed_precision_policy(param_dtype=dtype, reduce_dtype=dtype)
        if self.case.offloaded:
            options["offload_policy"] = offload_policy(self.rank)
        return options

    def forward(self, module: str) -> State:
        """A forward that waits for its backward; its losses, and their dtypes."""
        found = super().forward(module)
        return {**found, "dtypes": [str(loss.dtype) for loss in found["losses"]]}

    def guide(self, _: str) -> State:
        """Freeze the net, have its inputs learn through it, and thaw it, as that of a generator's judge."""
        self.freeze("")
        which = self.batches, self.place
        found = guided(self.case, self.net, self.case.on(self.rank.device, *which, self.case.torch_dtype), *which)
        self.thaw("")
        self.batches += 1
        return found

    def cancel(self, _: str) -> None:
        """Reshard while gathers are under way."""
        self.reshard("")

    def assign(self, module: str) -> None:
        """Put negated parameters in the place of a module's, and begin an optimizer."""
        place = self.net.get_submodule(module)
        place.load_state_dict({name: -p.detach() for name, p in place.named_parameters()}, strict=False, assign=True)
        self.hold()

    def swap(self, module: str) -> None:
        """The same with parameters that stay the objects that they are, and swap what is in them."""
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            self.assign(module)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    # State.

    def save(self, _: str) -> State:
        """Keep the state of net and optimizer, as parts and as whole tensors; what the net's is."""
        nets = {"sharded": self.net.state_dict(), "full": get_model_state_dict(self.net, options=FULL)}
        for form, state in nets.items():
            net = {name: value.detach().clone() for name, value in state.items()}
            self.saved[form] = (
                net,
                tree_map_only(Tensor, self.whole if form == "full" else copied, self.optimizer.state_dict()),
            )
        return {form: {name: seen(value) for name, value in net.items()} for form, (net, _) in self.saved.items()}

    def load(self, form: str) -> None:
        """Give the net its state back.

        To ask for its state first shards it, which the tool for full states needs and does not do itself: see
        docs/evidence/torch/other/full-state-into-gathered-net.py.
        """
        if form == "full":
            self.net.state_dict()
            set_model_state_dict(self.net, self.saved[form][0], options=FULL)
        else:
            self.net.load_state_dict(self.saved[form][0])

    def whole(self, value: Tensor) -> Tensor:
        """A copy of an optimizer's tensor, put together by all ranks."""
        if not is_dtensor(value):
            return copied(value)
        return DTensor.full_tensor(value.to(self.rank.device))  # type: ignore[arg-type]

    def recall(self, form: str) -> None:
        """Give the optimizer its state back."""
        kept, held = self.saved[form][1], list(self.held.values())
        entries = {
            number: {key: laid_out_as(held[number], value) for key, value in entry.items()}
            for number, entry in kept["state"].items()
        }
        self.optimizer.load_state_dict({"state": entries, "param_groups": kept["param_groups"]})

    def restart(self, form: str) -> None:
        """A new net, made and sharded on meta, and a new optimizer; both are given the state."""
        with torch.device("meta"):
            net = self.case.net.make().to(self.case.torch_dtype)
            spread_net(self.rank, self.case, net, **self.policies())
        self.take(net.to_empty(device="cpu" if self.case.offloaded else self.rank.device))
        self.load(form)
        self.recall(form)


def copied(value: Tensor) -> Tensor:
    """A copy that outlasts training."""
    return value.detach().clone()


def laid_out_as(parameter: DTensor, value: Tensor) -> Tensor:
    """A copy of an optimizer's tensor, cut as its parameter is if it is whole."""
    if is_dtensor(value):
        return copied(value)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
