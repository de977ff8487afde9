"""What a script does on ranks, act by act, and all that can be seen after each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

from harness.worlds.rank import Rank
from suites.generated.net_programs import spread_net
from suites.generated.nets import each_tensor, tensors_in
from suites.kit.layout import local
from suites.scenarios.script_baseline import momenta
from suites.scenarios.script_net import TrainedNet
from suites.scenarios.scripts import ScriptCase

Facts = dict[str, Any]
FULL = StateDictOptions(full_state_dict=True)


class Sharded(TrainedNet):
    """A sharded net in the middle of a script, on one rank.

    Optimizers hold the sharded parameters, whatever is registered: so values and gradients are looked up there.
    """

    def __init__(self, rank: Rank, case: ScriptCase) -> None:
        self.rank, self.case = rank, case
        self.saved: dict[str, Any] = {}
        self.batches = 0
        self.take(spread_net(rank, case, case.build().to(rank.device), **self.options()))

    def options(self) -> Facts:
        """The policies that the case asks for."""
        options, subject = Facts(), self.rank.implementation
        if self.case.computed:
            assert subject.mixed_precision_policy is not None
            dtype = getattr(torch, self.case.computed)
            options["mp_policy"] = subject.mixed_precision_policy(param_dtype=dtype, reduce_dtype=dtype)
        if self.case.offloaded:
            assert subject.cpu_offload_policy is not None
            options["offload_policy"] = subject.cpu_offload_policy(pin_memory=False)
        return options

    def take(self, net: Any) -> None:
        """Go on with this net, and a new optimizer."""
        self.net = net
        self.held: dict[str, Any] = dict(net.named_parameters())
        self.optimizer = self.case.optimizer(self.held.values())
        self.pending: list[Tensor] = []
        self.handles: list[Any] = []

    def do(self, act: str) -> Facts:
        """Do an act; all that can be seen then."""
        kind, _, what = act.partition(" ")
        found = getattr(self, kind)(what)
        return {**self.state(), "found": found or {}}

    def state(self) -> Facts:
        """All that can be seen at any time."""
        shown = dict(self.net.named_parameters())
        return {
            "parameters": {name: local(p) for name, p in self.held.items()},
            "gradients": {name: None if p.grad is None else local(p.grad) for name, p in self.held.items()},
            "momentum": {name: local(value) for name, value in momenta(self.optimizer, self.held).items()},
            "flags": {name: p.requires_grad for name, p in shown.items()},
            "rate": self.optimizer.param_groups[0]["lr"],
            "buffers": {name: local(buffer) for name, buffer in self.net.named_buffers()},
            "registered": {name: "sharded" if isinstance(p, DTensor) else "whole" for name, p in shown.items()},
            "whole": {name: local(p) for name, p in shown.items() if not isinstance(p, DTensor)},
        }

    def run(self) -> tuple[Tensor, Any]:
        """The next batch: its loss and outputs."""
        batch = self.case.inputs(self.batches, self.rank.number, 0, self.case.torch_dtype)
        outputs = self.net(**each_tensor(batch, lambda tensor: tensor.to(self.rank.device)))
        self.batches += 1
        return self.case.loss(outputs, self.batches - 1, self.rank.number, 0), outputs

    # Training.

    def forward(self, _: str) -> Facts:
        """A forward that waits for its backward."""
        loss, _ = self.run()
        self.pending.append(loss)
        return {"loss": loss.detach(), "dtype": str(loss.dtype)}

    @torch.no_grad()
    def look(self, _: str) -> Facts:
        """A forward without gradients."""
        return {"outputs": [each.clone() for each in tensors_in(self.run()[1])]}

    def evaluate(self, _: str) -> Facts:
        """The same in eval mode."""
        self.net.eval()
        found = self.look("")
        self.net.train()
        return found

    def backward(self, which: str) -> None:
        """A backward through one forward, or through all at once."""
        if which == "all":
            self.pending, losses = [], self.pending
            torch.stack(losses).sum().backward()
        else:
            self.pending.pop(0 if which == "oldest" else -1).backward()

    def accumulate(self, what: str) -> Facts:
        """A forward and a backward without reduction, or with one among ``shards`` only."""
        switch = self.net.set_requires_all_reduce if what == "shards" else self.net.set_requires_gradient_sync
        switch(False)
        found = self.forward("")
        self.backward("newest")
        switch(True)
        return found

    def clip(self, most: str) -> Facts:
        """Clip gradients; their norm."""
        norm: Any = torch.nn.utils.clip_grad_norm_(self.held.values(), float(most))
        return {"norm": norm.full_tensor() if isinstance(norm, DTensor) else norm}

    # Gathering and freeing.

    def unshard(self, group: str) -> None:
        """Unshard explicitly."""
        self.net.get_submodule(group).unshard()

    def begin(self, group: str) -> None:
        """Unshard explicitly, and wait later."""
        self.handles.append(self.net.get_submodule(group).unshard(async_op=True))

    def wait(self, _: str) -> None:
        """Wait for all that was begun, be it used up already or not."""
        for handle in self.handles:
            handle.wait()
        self.handles = []

    def reshard(self, _: str) -> None:
        """Reshard everything explicitly."""
        for group in self.case.groups:
            for module in group.modules:
                self.net.get_submodule(module).reshard()

    def keep(self, after: str) -> None:
        """Free nothing after forward, or after backward."""
        self.set_resharding(after, False)

    def free(self, after: str) -> None:
        """Free all after forward, or after backward."""
        self.set_resharding(after, True)

    def set_resharding(self, after: str, value: bool) -> None:
        """Set one of the two."""
        getattr(self.net, f"set_reshard_after_{after}")(value)

    # State.

    def save(self, _: str) -> Facts:
        """Keep the state of net and optimizer, as parts and as whole tensors; what the net's is."""
        nets = {"sharded": self.net.state_dict(), "full": get_model_state_dict(self.net, options=FULL)}
        for form, state in nets.items():
            net = {name: value.detach().clone() for name, value in state.items()}
            self.saved[form] = (net, self.optimizer_state(full=form == "full"))
        return {form: {name: local(value) for name, value in net.items()} for form, (net, _) in self.saved.items()}

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

    def optimizer_state(self, full: bool) -> Facts:
        """The optimizer's state dict, with tensors put together by all ranks if ``full``."""
        state = self.optimizer.state_dict()
        entries = {
            number: {key: self.put_together(value, full) for key, value in kept.items()}
            for number, kept in state["state"].items()
        }
        return {"state": entries, "param_groups": [dict(group) for group in state["param_groups"]]}

    def put_together(self, value: Any, full: bool) -> Any:
        """A copy of an optimizer's tensor, of all ranks' parts if ``full``; anything else as it is."""
        if isinstance(value, DTensor) and full:
            return DTensor.full_tensor(value.to(self.rank.device))  # type: ignore[arg-type]
        return value.detach().clone() if isinstance(value, Tensor) else value

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
            spread_net(self.rank, self.case, net, **self.options())
        self.take(net.to_empty(device="cpu" if self.case.offloaded else self.rank.device))
        self.load(form)
        self.recall(form)


def laid_out_as(parameter: Any, value: Any) -> Any:
    """A copy of an optimizer's tensor, cut as its parameter is if it is whole; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        return value.clone()
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def play(rank: Rank, case: ScriptCase) -> list[Facts]:
    """Do all acts; what could be seen after each. What an act raises says which it was."""
    net, seen = Sharded(rank, case), []
    for place, act in enumerate(case.acts):
        try:
            seen.append(net.do(act))
        except Exception as error:
            error.args = (f"in act {place + 1}, {act}: {error}",)
            raise
    return seen
