"""What runs on ranks to apply several functions to one net, and facts about what comes of it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import asks_for
from harness.worlds.rank import Rank
from suites.composition.compose import Call, ComposedCase, chosen
from suites.kit.cases import SPREAD, TrainingCase
from suites.kit.expected_collectives import tells_nothing
from suites.kit.programs import data_mesh, gradients, introspection, layouts, loss_of, sharded
from suites.kit.registered import fact
from suites.oracle.expected import expected
from suites.oracle.judging import follows
from suites.oracle.layout import is_dtensor, own
from suites.oracle.sharded import Resting, State
from suites.oracle.situation import PASS


def applied(rank: Rank, case: ComposedCase) -> nn.Sequential:
    """Build the net and apply what the case says."""
    net = case.build().to(rank.device)
    for place in sorted({call.place for call in case.calls if call.place}) if case.route == "compiled" else ():
        compiled(net.get_submodule(place))
    taken: list[str] = []
    listed = [call.place for call in case.calls if call.place] if case.route == "listed" else []
    if listed:
        called(rank, case, "fully_shard", [net.get_submodule(place) for place in listed])
    for call in case.calls:
        places = [] if call.place in listed else chosen(net, call, taken)
        if call.function.isupper():
            shard_by_strategy(rank, case, net, call)
        for place in places if not call.function.isupper() else ():
            called(rank, case, call.function, net.get_submodule(place))
        taken += places if call.function != "checkpoint" else ()
    return net


def compiled(module: nn.Module) -> None:
    """Compile it in place. Groups in Python are as opaque to tracing as those in C++: it goes on after their calls."""
    from torch._dynamo import trace_rules  # which takes seconds to import

    trace_rules.add("harness")
    module.compile(backend="eager")  # what is traced is the same, and nothing is generated


def called(rank: Rank, case: ComposedCase, name: str, module: nn.Module | list[nn.Module]) -> Any:
    """What one function of the implementation returns for one module, or for several."""
    function: Callable[..., Any] = getattr(rank.implementation, name)
    options: dict[str, Any] = {}
    if name in ("fully_shard", "replicate_fsdp"):
        options["mesh"] = data_mesh(rank, case)
    if name == "fully_shard":
        options["reshard_after_forward"] = case.reshard_after_forward
    return function(module, **options)


def shard_by_strategy(rank: Rank, case: ComposedCase, net: nn.Module, call: Call) -> None:
    """Let the implementation's own policy choose, and its strategy spread; without a policy, over the default mesh."""
    strategies = rank.implementation.strategies
    module, over = net.get_submodule(call.place), data_mesh(rank, case)
    mesh = None if over.ndim == 1 and not call.chosen else over
    kinds = {kind for each in module.modules() for kind in type(each).__mro__}
    classes = {kind for kind in kinds if kind.__name__ == call.chosen}
    policy = (lambda each: isinstance(each, tuple(classes))) if call.plain else strategies.module_policy(iter(classes))
    strategies.shard(module, policy if call.chosen else None, call.function, mesh)


class Composed(Resting):
    """The net of a case, on one rank, with all that is applied to it."""

    def made(self) -> Any:
        """The net, made ready for the case's route."""
        rank, case = self.rank, self.case
        if case.route == "cast":
            asks_for(Feature.CONVERSION)
        net: Any = applied(rank, replace(case, dtype="float64") if case.route == "cast" else case)
        if case.route == "prefetch":
            below = sorted(call.place for call in case.calls if call.place)
            for one, following in pairwise([net, *(net.get_submodule(place) for place in below)]):
                one.set_modules_to_forward_prefetch([following])
                following.set_modules_to_backward_prefetch([one])
        if case.route == "method":
            rank.implementation.register_forward_method(net, "run")
        return net.to(case.torch_dtype) if case.route == "cast" else net

    def switch(self, _: str, value: bool) -> None:
        """Say of everything that is spread whether its gradients are synchronised."""
        for call in self.case.calls:
            spread = self.net.get_submodule(call.place)
            if not hasattr(spread, "set_requires_gradient_sync"):
                asks_for(Feature.ACCUMULATION)
            spread.set_requires_gradient_sync(value)

    def see_forms(self) -> State:
        """Whether each parameter is cut or whole."""
        return {name: form(p) for name, p in self.net.named_parameters()}

    def see_layouts(self) -> State:
        """How every parameter lies."""
        return layouts(self.net, self.rank.mesh(), *SPREAD)

    def see_classes(self) -> dict[str, bool]:
        """Whether the modules to which something was applied are of the class that they gain."""
        asks_for(Feature.MODULE_CLASS)
        kind = self.rank.implementation.module_class
        return {call.place: isinstance(self.net.get_submodule(call.place), kind) for call in self.case.calls}

    def see_managed(self) -> list[str]:
        """The names of the modules that ``fully_shard`` of the root would manage now."""
        names = {module: name for name, module in self.net.named_modules()}
        return sorted(names[module] for module in introspection(self.rank).managed_modules(self.net))

    def see_state(self) -> State:
        """Of every entry of the state dict: what it is, whether that is cut, and this rank's part."""
        return {name: {**fact(value), "form": form(value)} for name, value in self.net.state_dict().items()}


def trains(trial: Trial, case: ComposedCase) -> None:
    """Play all actions on ranks, and compare with the unsharded net."""
    follows(trial, Composed.play, expected(case))


def returns(rank: Rank, case: ComposedCase) -> list[bool]:
    """Whether each call returns the very module that it is given."""
    net = case.build().to(rank.device)
    modules = [(call, net.get_submodule(call.place)) for call in case.calls]
    return [called(rank, case, call.function, module) is module for call, module in modules]


def state_of_each_type(rank: Rank, case: ComposedCase) -> dict[str, dict[str, Any]]:
    """After training, before any type is set and for each: the type as read back, and what the state dict holds.

    What the full one holds is loaded after all numbers were lost; of nothing, what is ``missing``.
    """
    net, strategies = Composed(rank, case), rank.implementation.strategies
    net.do_all(case.actions)
    found = {}
    for asked in ("not set", "sharded", "full", "sharded again"):
        if asked != "not set":
            strategies.set_state_dict_type(net.net, asked.partition(" ")[0])
        found[asked] = {
            "type": strategies.state_dict_type(net.net),
            "state": net.see_state(),
            "missing": net.net.load_state_dict({}, strict=False).missing_keys,
        }
        if asked == "full":
            kept = copy.deepcopy(net.net.state_dict())
            with torch.no_grad():
                for tensor in (*net.net.parameters(), *net.net.buffers()):
                    tensor.zero_()
            net.net.load_state_dict(kept)
    return found


def of_full_type(rank: Rank, case: TrainingCase) -> list[State]:
    """Full state dicts of a net that computes in bfloat16: at first, and once this rank's parts have other signs.

    And when the first was loaded after a forward. They were asked for before the net was sharded.
    """
    policy = rank.implementation.mixed_precision_policy(param_dtype=torch.bfloat16)
    net, found = case.build().to(rank.device), list[State]()
    rank.implementation.strategies.set_state_dict_type(net, "full")
    sharded(rank, case, net, mp_policy=policy)
    for _ in range(2):
        found.append({name: value.detach().clone() for name, value in net.state_dict().items()})
        for parameter in net.parameters():
            own(parameter).neg_()
    case.run(net, 0, rank.number, case.torch_dtype, rank.device)
    net.load_state_dict(found[0])
    return [*found, dict(net.state_dict())]


def of_another_shape(rank: Rank, case: TrainingCase) -> None:
    """Give a net its full state dict, of which weights are transposed."""
    net = case.build().to(rank.device)
    rank.implementation.strategies.set_state_dict_type(net, "full")
    sharded(rank, case, net)
    state = net.state_dict().items()
    net.load_state_dict({name: value.t().contiguous() if value.dim() == 2 else value for name, value in state})


def waiting(rank: Rank, case: ComposedCase) -> dict[str, Any]:
    """The gradients that a rank holds after a batch that is not synchronised, and the plain net's ``own``."""
    net, plain = Composed(rank, case), case.build().to(rank.device)
    loss_of(rank, case, plain).backward()
    net.do_all(("defer gradient_sync", *PASS))
    return {"own": gradients(plain), "held": gradients(net.net)}


def communicated(rank: Rank, case: ComposedCase) -> list[dict[str, int]]:
    """How often a second pass makes which collective; then one that does not synchronise."""
    net, found = Composed(rank, case), []
    net.do_all(PASS)
    for switch in ("resume", "defer"):
        with rank.collectives() as entries:
            net.do_all((f"{switch} gradient_sync", *PASS))
        found.append(dict(Counter(entry["op"] for entry in entries if not tells_nothing(entry))))
    return found


def form(tensor: Tensor) -> str:
    """Whether a tensor is cut, or whole on every rank: a plain tensor, or a DTensor with nothing but copies."""
    asks_for(Feature.DTENSORS)
    cut = is_dtensor(tensor) and not all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))
    return "cut" if cut else "whole"
