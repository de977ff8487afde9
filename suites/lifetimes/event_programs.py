"""What runs on ranks to learn what groups of parameters live through: a trace with waits, and what the layers note.

A linear layer that is sharded by itself notes, around the collectives of its group::

    enter · use, nothing wrong, alive: its group · leave         and in backward        use

Layers note from inside their own forward, which is wrapped before anything is sharded: whatever an implementation does
before and after a module has then been done, be it by hooks or otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.communication.played import mark
from suites.generated.net_cases import GeneratedCase, group_of
from suites.generated.net_programs import ShardedNet, spread_net
from suites.lifetimes.event_machine import Event
from suites.lifetimes.event_plan import label
from suites.oracle.layout import is_dtensor
from suites.oracle.sharded import State

Entries = list[dict[str, Any]]


class Watch:
    """Notes of a net's layers and groups, in ``entries``; keeps nothing alive of what it sees."""

    def __init__(self, case: GeneratedCase, net: nn.Module) -> None:
        self.entries: Entries = []
        self._case = case
        self._full = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
        self._seen: dict[weakref.ref[torch.UntypedStorage], str] = {}  # memory of full parameters, and whose it is
        self._forms: dict[str, list[weakref.ref[torch.UntypedStorage]]] = {}  # the same by parameter
        for name, module in net.named_modules():
            own = [key for key, _ in module.named_parameters(recurse=False)]
            if own:
                self._attend(module, name, own)
        for group in case.groups:
            for name in group.modules:
                self._surround(net.get_submodule(name), label(group))

    def note(self, what: str, **more: Any) -> None:
        """One note."""
        self.entries.append({"is": what, **more})

    def alive(self) -> list[str]:
        """The groups of which full parameters that were used have memory."""
        return sorted({group for storage, group in self._seen.items() if _bytes(storage)})

    def _surround(self, module: Any, group: str) -> None:
        forward = module.forward

        def noted(*args: Any, **options: Any) -> Any:
            self.note("enter", group=group)
            output = forward(*args, **options)
            self.note("leave", group=group)
            return output

        module.forward = noted

    def _attend(self, module: Any, layer: str, own: list[str]) -> None:
        forward = module.forward

        def noted(*args: Any, **options: Any) -> Tensor:
            self._use(module, layer, own, trains=False)
            output = forward(*args, **options)
            return mark(output, lambda: self._use(module, layer, own, trains=True))

        module.forward = noted

    def _use(self, module: Any, layer: str, own: list[str], trains: bool) -> None:
        """A layer uses its parameters: note which are not as they should be."""
        wrong, group = [], ""
        for key in own:
            name = f"{layer}.{key}" if layer else key
            group = label(group_of(self._case, name))
            if not self._is_full(getattr(module, key), name, group) and not (trains and self._is_kept(name)):
                wrong.append(key)
        trained = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        alive = self.alive()
        self.note("use", group=group, layer=layer, wrong=wrong, alive=alive, trains=trains and trained)

    def _is_full(self, parameter: Tensor, name: str, group: str) -> bool:
        """Whether what is registered is all of the parameter, in memory of its own size; if so, its memory is seen."""
        if is_dtensor(parameter) or tuple(parameter.shape) != self._full[name]:
            return False
        storage = parameter.untyped_storage()
        self._seen[weakref.ref(storage)] = group
        self._forms.setdefault(name, []).append(weakref.ref(storage))
        return storage.nbytes() >= parameter.numel() * parameter.element_size()

    def _is_kept(self, name: str) -> bool:
        """Whether memory that forward used is there, whatever is registered now."""
        return any(_bytes(storage) for storage in self._forms.get(name, ()))


def _bytes(storage: weakref.ref[torch.UntypedStorage]) -> int:
    kept = storage()
    return 0 if kept is None else kept.nbytes()


class Watched(ShardedNet):
    """The net of a case on one rank, which is watched."""

    reduces, spans = True, True  # what backward does: among shards, and among replicas

    def made(self) -> Any:
        """The net, sharded."""
        net = self.case.build().to(self.rank.device)
        self.watch = Watch(self.case, net)
        return spread_net(self.rank, self.case, net)

    def run(self, module: str = "") -> Any:
        """The outputs; inputs have gradients, so that backward needs every parameter."""
        given = self.case.on(self.rank.device, self.batches, self.place, self.case.torch_dtype)
        self.batches += 1
        return self.net(**tree_map_only(Tensor, lambda x: x.requires_grad_(x.is_floating_point()), given))

    def forward(self, _: str) -> State:
        """A forward, with notes of where it begins and ends."""
        self.watch.note("begin", **{"pass": "forward"})
        found = super().forward("")
        self.watch.note("end", alive=self.watch.alive())
        return found

    def backward(self, which: str) -> None:
        """The same of a backward."""
        self.watch.note("begin", **{"pass": "backward", "reduces": self.reduces, "spans": self.spans})
        super().backward(which)
        self.watch.note("end", alive=self.watch.alive())

    def switch(self, what: str, value: bool) -> None:
        """Switch reduction off or on, or the part of it among replicas."""
        super().switch(what, value)
        self.reduces, self.spans = value or what == "all_reduce", value


def live(rank: Rank, case: GeneratedCase, setting: str = "gradient_sync") -> Entries:
    """Train for two steps; what the second one said and noted. Micro-batches that reduce nothing are so by a setting.

    What an implementation does once, when it first runs, is its own business.
    """
    asks_for(Feature.ONE_MESSAGE)
    asks_for(Feature.ROW_LAYOUT)  # groups are known by their numbers
    net = Watched(rank, case)
    actions = [action.replace("gradient_sync", setting) for action in replace(case, steps=1).actions]
    for _ in range(2):
        with rank.collectives(waits=True) as net.watch.entries:
            net.do_all(actions)
    return net.watch.entries


def used(events: Iterable[Event]) -> Iterator[str]:
    """Which layers were used, and where."""
    place = ""
    for event in events:
        place = event["pass"] if event["is"] == "begin" else place
        if event["is"] == "use":
            yield f"{event['layer']} in {place}"
