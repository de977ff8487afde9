"""State dicts of sharded nets: what is done to a net on ranks, what is then looked at, and what must be seen.

A weight of five rows on two ranks is one entry on both, a DTensor whose local tensor is the parameter's own memory::

    rank 0: {"0.weight": DTensor, local rows 0, 1, 2}    rank 1: {"0.weight": DTensor, local rows 3, 4}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import Shard

from harness.worlds.rank import Rank
from suites.generated.net_cases import GeneratedCase
from suites.generated.net_programs import ShardedNet
from suites.kit.cases import TrainingCase
from suites.kit.parallel import cut_over_tp
from suites.kit.precision import dtype_of
from suites.kit.programs import ShardedStack, apply, laid_as
from suites.kit.registered import Facts, kind
from suites.kit.strategies import cases_of, plans, stacks, training_cases, world_sizes
from suites.kit.trees import share
from suites.oracle.layout import is_dtensor, own, put_together, seen, shard
from suites.oracle.training import interrupted

#: Nets without buffers: where those lie is not a matter of offload.
plain_cases = stacks(buffers=False).flatmap(lambda net: training_cases(exact=True, net=net, dtype="float64"))


@dataclass(frozen=True)
class OddCase(TrainingCase):
    """A net that is cut along the ``largest`` dim of each parameter, or ``recomputes`` its blocks.

    Or there are ``buffers``, one that is saved and one that is not; or two blocks have ``tied`` weights.
    """

    odd: Literal["largest", "recomputes", "buffers", "tied"] = "largest"

    def build(self) -> nn.Sequential:
        """The net with its buffers."""
        net = super().build()
        if self.odd == "buffers":
            net[0].register_buffer("saved", self.numbers((3,), 7))
            net.register_buffer("passing", self.numbers((2,), 8), persistent=False)
        if self.odd == "tied":
            share(net, "1.weight", "0.weight")
        return net

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """What a rank holds of a parameter."""
        return shard(full, self.shards, rank % self.shards, largest(full) if self.odd == "largest" else 0)


def odd_cases(odd: str, **fixed: Any) -> st.SearchStrategy[OddCase]:
    """Such nets."""
    return cases_of(OddCase, training_cases(reshard_after_forward=None, **fixed), odd=st.just(odd))


@st.composite
def placed_cases(draw: st.DrawFn) -> OddCase:
    """Nets whose every dim the ranks divide: unequal parts along other dims than the first are not asked for."""
    size, drawn = draw(world_sizes(2)), draw(stacks(most_blocks=2, largest=2))
    net = replace(drawn, dim=size * drawn.dim)
    return OddCase(size, net, draw(plans(net)), seed=draw(st.integers(0, 2**16)))


def largest(tensor: Tensor) -> int:
    """The largest dim; of equal ones, the last."""
    return max(range(tensor.dim()), key=lambda dim: (tensor.size(dim), dim))


def other(case: TrainingCase) -> nn.Sequential:
    """The same net with other values everywhere."""
    return replace(case, seed=case.seed + 1).build()


def expected(case: TrainingCase, number: int, net: nn.Module) -> Facts:
    """The entries that rank ``number`` must have when the unsharded net is ``net``."""
    buffers = dict(net.named_buffers())
    return {
        name: {"is": "a plain tensor", "value": full}
        if name in buffers
        else {"is": "a DTensor", "value": case.seen(number, name, full)}
        for name, full in net.state_dict().items()
    }


def described(state: dict[str, Tensor]) -> Facts:
    """Of every entry, whether it is a DTensor, and what is compared of it."""
    return {name: {"is": kind(entry), "value": seen(entry)} for name, entry in state.items()}


class Asked(ShardedStack):
    """A net on one rank, over a mesh of one axis, of replicas, or with tensor parallelism beside."""

    def made(self) -> Any:
        """The net, sharded."""
        return self.shard(self.case.build())

    def shard(self, net: nn.Sequential) -> Any:
        """The net, or another of such a form, sharded."""
        case, net = self.case, cut_over_tp(self.rank, self.case, net)
        options: dict[str, Any] = {"reshard_after_forward": case.reshard_after_forward}
        odd = getattr(case, "odd", "")
        if odd == "largest":
            options["shard_placement_fn"] = lambda parameter: Shard(largest(parameter))
        for block in net if odd == "recomputes" else ():
            self.rank.implementation.checkpoint(block)
        return apply(self.rank, case, net, **options)

    def tensors(self) -> dict[str, Tensor]:
        """What is registered: parameters, then buffers."""
        return {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}

    # What is done besides.

    def ask(self, _: str) -> None:
        """Ask for a state dict."""
        self.net.state_dict()

    def crash(self, module: str) -> dict[str, bool]:
        """A forward that ends in a module, after which nothing is put in order."""
        return interrupted(self.net, module, self.losses)

    def allocate(self, _: str) -> None:
        """Make new entries: those of the other net, sharded."""
        self.fresh = {name: value.detach().clone() for name, value in self.shard(other(self.case)).state_dict().items()}
        self.lay = {name: own(value).data_ptr() for name, value in self.net.state_dict().items()}

    def join(self, place: str) -> None:
        """Let them lie in one memory by the order of their names, alone or ``second``, after zeros for each of them."""
        zeros = {name: torch.zeros_like(value) for name, value in self.fresh.items()}
        states = in_one_memory([zeros, self.fresh] if place == "second" else [self.fresh])
        self.earlier, self.fresh = states[0], states[-1]

    def convert(self, dtype: str) -> None:
        """Give them another dtype."""
        self.fresh = {name: value.to(dtype_of(dtype)) for name, value in self.fresh.items()}

    def layers(self) -> dict[str, Any]:
        """What is asked for its state, and given it, by what its entries begin with."""
        return {"": self.net}

    def give(self, how: str) -> dict[str, list[str]]:
        """Load, or ``assign``, them or the ``earlier`` ones; the keys that do not fit, and what then lies elsewhere."""
        wrong: list[str] = []
        given = self.earlier if how == "earlier" else self.fresh
        for start, layer in self.layers().items():
            fresh = {name[len(start) :]: value for name, value in given.items() if name.startswith(start)}
            found = layer.load_state_dict(fresh, assign=how != "")
            wrong += [*found.missing_keys, *found.unexpected_keys]
        state = self.net.state_dict()
        moved = [name for name, value in state.items() if own(value).data_ptr() != self.lay[name]]
        return {"do not fit": wrong, "moved": moved}

    # What is looked at.

    def see_entries(self) -> Facts:
        """The entries of the state dict, or of all layers' own, in order."""
        asked = ((start, layer.state_dict()) for start, layer in self.layers().items())
        return described({start + name: value for start, state in asked for name, value in state.items()})

    def see_types(self) -> dict[str, str]:
        """The dtype of each parameter that is registered."""
        return {name: str(parameter.dtype) for name, parameter in self.net.named_parameters()}

    def see_trains(self) -> dict[str, bool]:
        """Whether each parameter needs a gradient."""
        return {name: parameter.requires_grad for name, parameter in self.net.named_parameters()}

    def see_asked(self) -> Facts:
        """Those that ``get_model_state_dict`` gives."""
        return described(self.rank.implementation.state_dicts.get_model_state_dict(self.net))

    def see_tensors(self) -> Facts:
        """What is registered, by sorted names."""
        return described(dict(sorted(self.tensors().items())))

    def see_shares(self) -> dict[str, bool]:
        """Whether the entry of each parameter and buffer is its very memory; of empty ones, nothing can be said."""
        state, held = self.net.state_dict(), self.tensors()
        return {n: not own(e).numel() or own(e).data_ptr() == own(held[n]).data_ptr() for n, e in state.items()}

    def see_cuts(self) -> dict[str, list[int | None]]:
        """The dim that each parameter's entry is cut along, on each axis of its mesh."""
        state = self.net.state_dict()
        return {name: [getattr(way, "dim", None) for way in state[name].placements] for name in self.held}

    def see_devices(self) -> dict[str, str]:
        """Where each entry lies."""
        return {name: value.device.type for name, value in self.net.state_dict().items()}


class ByLayer(Asked):
    """The same, of which each layer is asked for its own state, and given it, sharded separately or not."""

    def layers(self) -> dict[str, Any]:
        """The modules that have parameters or buffers themselves, by what their entries begin with."""
        named = {f"{name}.".lstrip("."): module for name, module in self.net.named_modules()}
        return {start: module for start, module in named.items() if module._parameters or module._buffers}


class LastFirst(ByLayer):
    """The same from the last layer to the first."""

    def layers(self) -> dict[str, Any]:
        """The last one first."""
        return dict(reversed(super().layers().items()))

    def see_entries(self) -> Facts:
        """The entries of all layers, in the order of the net's."""
        found = super().see_entries()
        return {name: found[name] for name in self.net.state_dict()}


class Assembled(Asked):
    """A net that began on meta, into which one parameter after the other is loaded by ``assign``.

    The option ``pin`` is what is said to the policy of CPU offload; without such a policy it is None.
    """

    def made(self) -> Any:
        """The net with the values of the other net."""
        policy = self.rank.implementation.cpu_offload_policy
        pin = self.options["pin"]
        options = {} if pin is None else {"offload_policy": policy(pin_memory=pin)}
        with torch.device("meta"):
            net = self.case.net.build().to(self.case.torch_dtype)
        apply(self.rank, self.case, net, **options)
        for name, value in self.shard(other(self.case)).state_dict().items():
            net.load_state_dict({name: value.cpu() if options else value}, assign=True, strict=False)
        return net


def assembled(rank: Rank, case: TrainingCase, pin: bool | None) -> dict[str, Any]:
    """What such a net gives, what is entered, and where that lies."""
    return Assembled(rank, case, pin=pin).do("look", ("entries", "devices"))


class Held(Asked):
    """A net whose state dict was asked for before training, and is looked at in place of its parameters."""

    def take(self, net: Any) -> None:
        """Ask for it."""
        super().take(net)
        self.state = net.state_dict()

    def see_parameters(self) -> dict[str, Any]:
        """This rank's part of what is entered of parameters."""
        return {name: seen(self.state[name], self.held[name]) for name in self.held}


def in_one_memory(states: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same entries, of which those that are sharded lie one after the other, each state's by their names."""
    cut = [{name: own(value) for name, value in sorted(state.items()) if is_dtensor(value)} for state in states]
    parts = [part for each in cut for part in each.values()]
    views = iter(torch.cat([part.flatten() for part in parts]).split([part.numel() for part in parts]))
    return [
        {**state, **{name: laid_as(state[name], next(views).view_as(part)) for name, part in each.items()}}
        for state, each in zip(states, cut, strict=True)
    ]


class Versioned(nn.Sequential):
    """A module whose state is of a version of its own; ``told`` is the version that it was given when it loaded one."""

    _version = 3
    told: int | None = None

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        self.told = metadata.get("version")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def versions(rank: Rank, case: TrainingCase) -> dict[str, Any]:
    """The version of its state that each module is given when it loads its own."""
    net = apply(rank, case, Versioned(*map(Versioned, case.build())).to(rank.device))
    net.load_state_dict(net.state_dict())
    return {name: module.told for name, module in net.named_modules() if isinstance(module, Versioned)}


def full_on_rank_zero(rank: Rank, case: GeneratedCase) -> dict[str, Any]:
    """Every entry of the state dict put together by all ranks: what this rank keeps if rank 0's CPU alone has it."""
    found: dict[str, Any] = {}
    for name, value in ShardedNet(rank, case).net.state_dict().items():
        full = put_together(value)
        if rank.number == 0:
            found[name] = entry(full.cpu())
    return found


def entry(tensor: Tensor) -> dict[str, Any]:
    """Where a full tensor lies, and its values."""
    return {"device": str(tensor.device), "value": tensor.detach().clone()}
