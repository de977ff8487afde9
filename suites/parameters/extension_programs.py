"""Nets with coded weights: what is drawn, and what runs on ranks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils._pytree import tree_map_only

from harness.trial.refusals import Raised, refused
from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase
from suites.kit.own_collectives import OwnGather
from suites.kit.programs import apply, sharded, write
from suites.kit.registered import when_run
from suites.kit.strategies import cases_of, training_cases
from suites.oracle.layout import is_dtensor, shard
from suites.oracle.sharded import Resting, State
from suites.oracle.unsharded import Unsharded
from suites.parameters import coded
from suites.parameters.coded import CALLS, calls, filled


@dataclass(frozen=True)
class CodedCase(TrainingCase):
    """``kind`` is the class of the weights, by name; ``low`` the dtype that mixed precision asks for, if it does.

    Parameters are cut along ``dim``, which is the first or the last.
    """

    kind: str = "Parted"
    low: str | None = None
    dim: int = 0

    @property
    def policy(self) -> dict[str, torch.dtype]:
        """The dtype to compute in, if there is one."""
        return {"param_dtype": getattr(torch, self.low)} if self.low else {}

    def coded(self) -> nn.Sequential:
        """The net with coded weights."""
        return coded.coded(self.build(), getattr(coded, self.kind))

    def part(self, rank: int, name: str, full: Tensor) -> Tensor:
        """A rank's rows or columns."""
        return shard(full, self.shards, rank % self.shards, self.dim % full.dim())

    def shown(self, place: int) -> tuple[str, ...]:
        """In the end also whether hooks were called."""
        return (*super().shown(place), *(["hooks"] if place == len(self.actions) - 1 else []))


def coded_cases(
    kind: str = "Parted", low: str | None = None, dim: int = 0, **fixed: Any
) -> st.SearchStrategy[CodedCase]:
    """Training cases with coded weights; exact unless ``exact`` is fixed: what goes through a code keeps every bit."""
    cases = training_cases(**{"exact": True, **fixed})
    return cases_of(CodedCase, cases, kind=st.just(kind), low=st.just(low), dim=st.just(dim))


def even_cases(kind: str = "Parted", **fixed: Any) -> st.SearchStrategy[CodedCase]:
    """The same where ranks divide all rows of weights."""
    return st.tuples(st.sampled_from([2, 4]), st.integers(1, 2)).flatmap(
        lambda sizes: coded_cases(kind, **{"world_size": sizes[0], "net": Stack(4, ("mlp",), sizes[1]), **fixed})
    )


class UnshardedCoded(Unsharded):
    """The unsharded net, which has no code."""

    def see_hooks(self) -> dict[str, bool]:
        """They are called wherever there are weights."""
        return {"ran": any(parameter.dim() == 2 for parameter in self.named.values())}


class UnshardedPlain(Unsharded):
    """The unsharded net, whose weights have no hooks."""

    def see_hooks(self) -> dict[str, bool]:
        """None is called."""
        return {"ran": False}


class ShardedCoded(Resting):
    """The net of a case on one rank; what it holds is looked at without its code."""

    def made(self) -> Any:
        """The net with coded weights, sharded."""
        CALLS[self.rank.number] = []
        placed = (
            {"shard_placement_fn": lambda parameter: Shard(self.case.dim % parameter.dim())} if self.case.dim else {}
        )
        return sharded(self.rank, self.case, self.case.coded(), **placed)

    def do(self, action: str, shown: Collection[str]) -> State:
        """Do an action; what can be seen then."""
        found: State = tree_map_only(Tensor, coded.plain, super().do(action, shown))
        return found

    def see_hooks(self) -> dict[str, bool]:
        """Whether any was called."""
        return {"ran": bool(calls())}


class Patched(ShardedCoded):
    """The same, built and sharded on meta: hooks are given to the local tensors themselves.

    ``to_local()`` of a parameter is a view of its local tensor, hence the attribute of DTensors.
    """

    def made(self) -> Any:
        """The net with memory, hooks and weights."""
        CALLS[self.rank.number] = []
        with torch.device("meta"):
            net = self.case.net.build().to(self.case.torch_dtype)
            apply(self.rank, self.case, net, reshard_after_forward=self.case.reshard_after_forward)
        net.to_empty(device=self.rank.device)
        write(self.rank, self.case, net)
        for place, parameter in enumerate(weights(net)):
            kind = getattr(coded, self.kind_of(place))
            for name in ("fsdp_pre_all_gather", "fsdp_post_all_gather"):
                hook = getattr(kind, name)
                setattr(parameter._local_tensor, name, MethodType(hook, parameter._local_tensor))  # type: ignore[attr-defined]
        return net

    def kind_of(self, place: int) -> str:
        """Whose hooks a weight gets."""
        return self.case.kind  # type: ignore[no-any-return]


class PatchedInTurn(Patched):
    """The same, where every other weight gets the older hooks."""

    def kind_of(self, place: int) -> str:
        """Those of either form."""
        return "PartedByMesh" if place % 2 else "Parted"


class Dropped(ShardedCoded):
    """The same, whose weights are replaced, before it runs, by plain ones of the same numbers."""

    def made(self) -> Any:
        """The net, into which plain weights were loaded."""
        net = super().made()
        loaded = {name: without_code(value) if is_dtensor(value) else value for name, value in net.state_dict().items()}
        net.load_state_dict(loaded, assign=True)
        return net


def without_code(parameter: DTensor) -> DTensor:
    """A parameter of the same numbers, with a local tensor that has no hooks."""
    local, layout = coded.plain(parameter.to_local()).clone(), (parameter.device_mesh, parameter.placements)
    return DTensor.from_local(local, *layout, run_check=False, shape=parameter.shape, stride=parameter.stride())


def note_hooks(rank: Rank, case: CodedCase) -> dict[str, Any]:
    """Run forward twice without gradients, every group sharded again after each; what the hooks noted, by weight."""
    net = ShardedCoded(rank, replace(case, reshard_after_forward=True))
    names = {module: name for name, module in net.net.named_modules()}
    seen, freed = when_run(net.net, lambda parameter: parameter.dtype), []
    for _ in range(2):
        net.look("")
        net.reshard("")
        freed += [filled(module) for module in names if "handed over" in vars(module)]
    return {
        "filled in hooks": [call.pop("filled") for call in calls()],
        "filled after": freed,
        "calls": [{**each, "module": names[each["module"]], "policy": each["policy"].param_dtype} for each in calls()],
        "seen": sorted(set(map(str, seen.values()))),
    }


def gathers(rank: Rank, case: CodedCase) -> list[int]:
    """How many times the root's collective is called, for each of two forwards without gradients."""
    net, counters = ShardedCoded(rank, replace(case, reshard_after_forward=True)), [OwnGather(), OwnGather()]
    for counting in counters:
        net.net.set_custom_all_gather(counting)
        net.look("")
    return [counting.calls for counting in counters]


def unshard_unpadded(rank: Rank, case: CodedCase) -> Raised | None:
    """On ranks with fewer rows than the first: what unsharding raised; others, which see no error, do nothing."""
    net = ShardedCoded(rank, case).net
    rows = [p.to_local().size(0) for p in weights(net)]  # type: ignore[attr-defined]
    if all(own == -(-p.size(0) // case.shards) for own, p in zip(rows, weights(net), strict=True)):
        return None
    return refused(rank, case, lambda *_: net.unshard())


def weights(net: nn.Module) -> list[nn.Parameter]:
    """The parameters of two dims."""
    return [parameter for parameter in net.parameters() if parameter.dim() == 2]
