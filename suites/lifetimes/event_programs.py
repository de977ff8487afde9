"""What runs on ranks to learn what groups of parameters live through: a trace with waits, and what the layers note.

A linear layer that is sharded by itself notes, around the collectives of its group::

    enter · use, nothing wrong, alive: its group · leave         and in backward        use

Layers note from inside their own forward, which is wrapped before anything is sharded: whatever an implementation does
before and after a module has then been done, be it by hooks or otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from harness.worlds.rank import Rank
from suites.communication.markers import mark
from suites.generated.net_cases import GeneratedCase
from suites.generated.net_programs import spread_net
from suites.kit.nets import each_tensor
from suites.kit.stepping import OwnSGD
from suites.lifetimes.event_machine import Event
from suites.lifetimes.event_plan import label, owner

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
            group = owner(self._case, name)
            if not self._is_full(getattr(module, key), name, group) and not (trains and self._is_kept(name)):
                wrong.append(key)
        trained = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        alive = self.alive()
        self.note("use", group=group, layer=layer, wrong=wrong, alive=alive, trains=trains and trained)

    def _is_full(self, parameter: Tensor, name: str, group: str) -> bool:
        """Whether what is registered is all of the parameter, in memory of its own size; if so, its memory is seen."""
        if isinstance(parameter, DTensor) or tuple(parameter.shape) != self._full[name]:
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


def live(rank: Rank, case: GeneratedCase, switch: str = "set_requires_gradient_sync") -> Entries:
    """Train for two steps; what the second one said and noted. Micro-batches that reduce nothing are so by ``switch``.

    What an implementation does once, when it first runs, is its own business.
    """
    net: Any = case.build().to(rank.device)
    watch = Watch(case, net)
    spread_net(rank, case, net)
    optimizer = OwnSGD(net.parameters(), case.learning_rate)
    for step in range(2):
        with rank.collectives(waits=True) as watch.entries:
            for micro, reduces in enumerate(case.reduced):
                if not all(case.reduced):
                    getattr(net, switch)(reduces)
                _pass(rank, case, net, watch, (step, micro, reduces), switch)
        optimizer.step()
        optimizer.zero_grad()
    return watch.entries


def _pass(rank: Rank, case: GeneratedCase, net: Any, watch: Watch, which: tuple[int, int, bool], switch: str) -> None:
    """One micro-batch. Inputs have gradients, so that backward needs every parameter."""
    step, micro, reduces = which
    scatters = reduces or switch == "set_requires_all_reduce"
    batch = step * len(case.reduced) + micro
    given = case.inputs(batch, rank.number, case.torch_dtype)
    inputs = each_tensor(given, lambda tensor: tensor.to(rank.device).requires_grad_(tensor.is_floating_point()))
    watch.note("begin", **{"pass": "forward"})
    [loss] = case.losses(net(**inputs), batch, rank.number)
    watch.note("end", alive=watch.alive())
    watch.note("begin", **{"pass": "backward", "reduces": scatters, "spans": reduces})
    loss.backward()
    watch.note("end", alive=watch.alive())


def used(events: Iterable[Event]) -> Iterator[str]:
    """Which layers were used, and where."""
    place = ""
    for event in events:
        place = event["pass"] if event["is"] == "begin" else place
        if event["is"] == "use":
            yield f"{event['layer']} in {place}"
