"""What runs on ranks to ask what an optimizer keeps, by names, and to give it to another optimizer."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions

from harness.worlds.rank import Rank
from suites.composition.compose_programs import applied
from suites.kit.programs import ShardedStack
from suites.oracle.layout import local, put_together
from suites.oracle.sharded import FORMS, TO_LOAD, Sharded
from suites.saving.chains import RATE, CheckpointCase, make_optimizer
from suites.saving.checkpoint_programs import Facts, OnRank, Other, lie
from suites.saving.optimizer_states import KeptCase, in_order

#: The forms of a state, and the one in which an optimizer's is one flat dict: how each is asked for, and given back.
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
ASKED, GIVEN = {**FORMS, "flat": FLAT}, {**TO_LOAD, "flat": FLAT}


# Trained nets.


class Asking(Sharded):
    """A net whose optimizer is asked for its state at any time."""

    def ask(self, _: str) -> None:
        """Ask."""
        self.rank.implementation.state_dicts.get_optimizer_state_dict(self.net, self.optimizer)


class Asked(Asking, ShardedStack):
    """A stack on one rank."""


class Units(Asking):
    """A net of units on one rank."""

    def made(self) -> Any:
        """The net, with all applied."""
        return applied(self.rank, self.case)

    def see_named(self) -> Facts:
        """What the optimizer keeps, put together by all ranks; and whose of it does not lie as its parameter."""
        state = self.rank.implementation.state_dicts.get_optimizer_state_dict(self.net, self.optimizer)
        found = described(state, put_together)
        return {**found, "state": in_order(found["state"]), "strays": strays(self.net, state)}


def strays(net: nn.Module, state: Any) -> list[str]:
    """The entries that do not lie on ranks as their sharded parameters do, but for counts of steps."""
    ways = lie(dict(net.named_parameters()))
    entries = [(name, key, way) for name, kept in state["state"].items() for key, way in lie(kept).items()]
    return [f"{name}: {key}" for name, key, way in entries if key != "step" and way != ways.get(name)]


def described(state: Any, seen: Any = local) -> Facts:
    """An optimizer's state, of all its tensors what is to be ``seen``: this rank's part; with keys in order."""
    entries = {
        name: {key: seen(value) if isinstance(value, Tensor) else value for key, value in in_order(found).items()}
        for name, found in state["state"].items()
    }
    return {"state": entries, "param_groups": [in_order(group) for group in state["param_groups"]]}


def reloaded(rank: Rank, case: KeptCase) -> Facts:
    """An optimizer's own state dict, and that of a new one of another rate that was given the state by names."""
    units = Units(rank, case)
    units.do_all(case.actions)
    fresh = make_optimizer(case.kind, units.net.parameters())
    fresh.param_groups[0]["lr"] = 1.0
    return handed_over(units, units.optimizer, fresh)


def handed_over(net: Sharded, old: Any, fresh: Any, form: str = "sharded") -> Facts:
    """Give a new optimizer, or several, a net's state in a form; what all say, and which parameters groups have.

    A flat state has no groups.
    """
    states = net.rank.implementation.state_dicts
    state: Any = states.get_optimizer_state_dict(net.net, old, options=ASKED[form])
    states.set_optimizer_state_dict(net.net, fresh, copy.deepcopy(state), options=GIVEN[form])
    names = [group["params"] for group in state.get("param_groups", ())]
    return {"names": names, "original": all_described(old), "reloaded": all_described(fresh)}


def all_described(optimizers: Any) -> list[Facts]:
    """The state of one optimizer or of several, each with parameters by number."""
    return [described(each.state_dict()) for each in (optimizers if isinstance(optimizers, list) else [optimizers])]


# Nets whose optimizers keep known numbers.


def on_rank_zero(rank: Rank, case: CheckpointCase) -> Facts:
    """The full state of both, on the CPU of rank 0 alone."""
    state = OnRank(rank, case).remember().state(FORMS["rank zero"])
    kinds = {kind for value in state["net"].values() for kind in (str(value.device), type(value).__name__)}
    moments = described(state["optimizer"])["state"] if state["optimizer"] else {}
    return {"net": state["net"], "optimizer": moments, "kinds": sorted(kinds)}


def through(rank: Rank, case: CheckpointCase, form: str) -> Facts:
    """Give another net and optimizer the state in a form; what is held then, and how many dicts were in a flat one."""
    state = OnRank(rank, case).remember().state(ASKED[form])
    other = Other(rank, case)
    other.give(state, GIVEN[form])
    dicts = sum(isinstance(value, dict) for value in state["optimizer"].values())
    return {**other.facts(), **({"dicts inside": dicts} if form == "flat" else {})}


def without_a_key(rank: Rank, case: CheckpointCase) -> None:
    """Give another net the full state, which rank 0 alone has, without its last entry."""
    states = rank.implementation.state_dicts
    state = states.get_model_state_dict(OnRank(rank, case).net, options=FORMS["rank zero"])
    if state:
        del state[list(state)[-1]]
    states.set_model_state_dict(Other(rank, case).net, state, options=TO_LOAD["rank zero"])


def loaded_otherwise(
    rank: Rank, case: CheckpointCase, strict: bool = True, extra: bool = True, lose: bool = True
) -> Facts:
    """Load a state dict whose first weight is called ``other`` too if ``extra``; it loses its own name if ``lose``."""
    states, first = rank.implementation.state_dicts, "layers.0.weight"
    state = states.get_model_state_dict(OnRank(rank, case).net)
    if extra:
        state["other"] = state[first]
    if lose:
        del state[first]
    other = Other(rank, case)
    said = states.set_model_state_dict(other.net, state, options=StateDictOptions(strict=strict))
    return {"missing": said.missing_keys, "unexpected": said.unexpected_keys, "net": other.facts()["net"]}


def in_groups(rank: Rank, case: CheckpointCase, form: str) -> Facts:
    """Give the state of an optimizer of several groups to another with such groups at other settings, without entries.

    A flat state, and that of rank 0, has what the other's groups have entries for; a flat one cannot have an empty one.
    """
    net, is_flat = OnRank(rank, case), form == "flat"
    net.optimizer = grouped(net, RATE, not is_flat, initial_lr=0.25, weight_decay=0.0)
    net.remember()
    entries = {} if form == "sharded" else {"initial_lr": 0.5}
    return handed_over(net, net.optimizer, grouped(net, 1.0, not is_flat, weight_decay=0.5, **entries), form)


def of_several(rank: Rank, case: CheckpointCase) -> Facts:
    """Give the state of two optimizers of one net to two others of other rates."""
    net = OnRank(rank, case).remember()
    old, fresh = ([make_optimizer(case.optimizer, [group]) for group in halved(net, rate)] for rate in (RATE, 1.0))
    for optimizer in old:
        own = optimizer.param_groups[0]["params"]
        optimizer.state.update({p: net.optimizer.state[p] for p in own if p in net.optimizer.state})
    return handed_over(net, old, fresh)


def grouped(net: OnRank, rate: float, empty: bool = True, **entries: float) -> torch.optim.Optimizer:
    """An optimizer of the first weight, of all else at half the rate, and of nothing at a quarter; entries of each.

    The empty one is last: torch loses what comes after it (docs/evidence/torch/other/empty-group-not-last.py).
    """
    groups = [*halved(net, rate), *[{"params": [], "lr": rate / 4}] * empty]
    return make_optimizer(net.case.optimizer, [{**group, **entries} for group in groups])


def halved(net: OnRank, rate: float) -> list[Facts]:
    """A group of the first weight, and one of all else at half the rate."""
    first, *rest = net.net.parameters()
    return [{"params": [first], "lr": rate}, {"params": rest, "lr": rate / 2}]


def of_submodule(rank: Rank, case: CheckpointCase, place: int) -> Facts:
    """The names in the state of one layer, in full, and as the layer has them."""
    net, states = OnRank(rank, case).net, rank.implementation.state_dicts
    return {
        form: list(states.get_model_state_dict(net, submodules={net.layers[place]}, options=options))
        for form, options in (("full", None), ("own", StateDictOptions(keep_submodule_prefixes=False)))
    }


def without_frozen(rank: Rank, case: CheckpointCase) -> list[str]:
    """The names in the state dict that leaves frozen parameters out."""
    options = StateDictOptions(ignore_frozen_params=True)
    return list(rank.implementation.state_dicts.get_model_state_dict(OnRank(rank, case).net, options=options))


def given_frozen(rank: Rank, case: CheckpointCase) -> Facts:
    """What a net has once it is given a full state with other values, by options that leave frozen parameters out."""
    net, states = OnRank(rank, case).net, rank.implementation.state_dicts
    full = StateDictOptions(full_state_dict=True)
    given = {name: torch.full_like(value, 2) for name, value in states.get_model_state_dict(net, options=full).items()}
    states.set_model_state_dict(net, given, options=replace(full, ignore_frozen_params=True))
    found = states.get_model_state_dict(net, options=full)
    return {name: bool((value == 2).all()) for name, value in found.items()}


def never_stepped(rank: Rank, case: CheckpointCase) -> Facts:
    """Ask for the state of an optimizer of several groups that has never stepped; one rate is a tensor."""
    net = OnRank(rank, case)
    net.optimizer = grouped(net, RATE, initial_lr=0.25)
    net.optimizer.param_groups[0]["lr"] = torch.tensor(RATE)
    state = net.state()["optimizer"]
    moments = {
        name: {key: value for key, value in found.items() if key != "step"}
        for name, found in described(state)["state"].items()
    }
    gradients = [name for name, p in net.net.named_parameters() if p.grad is not None]
    return {
        "net": net.facts()["net"],
        "moments": moments,
        "strays": strays(net.net, state),
        "with gradients": gradients,
        "rates": [float(group["lr"]) for group in net.optimizer.param_groups],
    }
