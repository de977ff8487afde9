"""Which values of dimensions do not go together, and why. Imports no ``torch.distributed``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from suites.scenarios.dimensions import DIMENSIONS, PAIRED, REPLICATED, UNCUT, UNCUT_IF_PAIRED


@dataclass(frozen=True)
class Rule:
    """Values that are not tried together, and why: impossible ones, or ones with a requirement of their own."""

    values: Mapping[str, tuple[str, ...]]
    reason: str

    def holds(self, chosen: Mapping[str, str]) -> bool:
        """Whether ``chosen`` has such values of all these dimensions."""
        return all(chosen.get(name) in values for name, values in self.values.items())


def _all_but(name: str, *values: str) -> tuple[str, ...]:
    return tuple(value.name for value in DIMENSIONS[name] if value.name not in values)


def _no(reason: str, **values: str | tuple[str, ...]) -> Rule:
    return Rule({name: (one,) if isinstance(one, str) else one for name, one in values.items()}, reason)


#: With which a full state is loaded.
LOADS_FULL: tuple[dict[str, tuple[str, ...]], ...] = ({"life": ("loaded", "meta")}, {"form": ("full", "rank zero")})
NO_FULL = "torch's tools load no full state"
#: With which something else follows the first backward through a module at once: another, or a step.
IN_TURN: tuple[dict[str, str], ...] = ({"gradients": "two losses"}, {"update": "hooks"})


#: What no correct implementation has to accept together.
IMPOSSIBLE = (
    _no("replicas are needed for an all-reduce", gradients="no all-reduce", mesh=_all_but("mesh", *REPLICATED)),
    _no("groups of two divide four ranks that shard", reshard="pairs", mesh=_all_but("mesh", "4")),
    _no("groups of two divide four ranks that shard", reshard="pairs", parallelism="tensor"),
    _no("tensor parallelism takes two neighbours", parallelism="tensor", mesh=_all_but("mesh", *PAIRED)),
    _no("one of two meshes has replicas", parallelism="two meshes", mesh=_all_but("mesh", *REPLICATED)),
    *(_no(f"{NO_FULL} into a module that is shared", wrapping="shared", **each) for each in LOADS_FULL),
    _no("a group has one axis", groups="from group", mesh=REPLICATED),
    _no("a group has one axis", groups="from group", parallelism="tensor"),
    *(
        _no(f"{NO_FULL} into parameters on the CPU beside buffers on a device", net="norms", offload="cpu", **each)
        for each in LOADS_FULL
    ),
    _no("tensor parallelism cuts into equal parts", parallelism="tensor", rows=("uneven", "fewer")),
    _no("torch has no norm of parameters on several meshes", parallelism=("tensor", "two meshes"), update="clipped"),
    _no("nothing but the root is there to prefetch", prefetch=_all_but("prefetch", "default"), wrapping="root"),
    _no("lists of modules that run in part are judged by themselves", wrapping="list", runs="skipped"),
    _no("torch warns where no input takes a gradient", wrapping="wrapper", modules="backward hooks"),
    _no("no hooks run for a method", runs="method", modules=("hooks before", "hooks after", "backward hooks")),
    _no("what is offloaded stays on the CPU", offload="cpu", life="moved"),
    _no("one rank has all rows", rows=("uneven", "fewer"), mesh=UNCUT),
    _no("nothing is asked for in any form", asked="never", form=("full", "rank zero")),
    _no("tensors that share are sharded together", net="tied", wrapping="parts"),
    _no("a conversion leaves one dtype", net="dtypes", life="converted"),
    _no(
        "a batch norm computes in the dtype of its statistics",
        net="norms",
        dtype=("param", "param and reduce", "output", "wider"),
    ),
    _no("a dtype that is converted to is that of the parameters", life="converted", dtype="wider"),
    _no("re-entrant recomputation does not let two backwards through", recompute="reentrant", gradients="two losses"),
    _no("re-entrant recomputation needs an input that takes a gradient", recompute="reentrant", wrapping="wrapper"),
    _no(
        "selective recomputation needs regions that run alike again, and those may find gathered what they gathered",
        recompute="selective",
        wrapping="parts",
    ),
    _no("what autocast has cast for one run is not cast for the next", recompute="selective", dtype="autocast"),
    _no("selective recomputation lets one backward through", recompute="selective", gradients="two losses"),
    _no("what has taken its step in backward is not what the next one needs", update="hooks", gradients="two losses"),
    _no(
        "a backward that is not the last, or not finalized, leaves steps that are under way",
        update="hooks",
        gradients=("last backward", "finalized"),
    ),
    _no("what has taken its step in backward keeps it", update="hooks", life="exception in backward"),
    _no(
        "an optimizer that steps in backward leaves no gradients",
        update="hooks",
        optimizer=_all_but("optimizer", "SGD"),
    ),
    _no("what runs twice may be reduced twice, and step each time", update="hooks", runs="twice"),
    _no("what runs twice may be reduced twice, and step each time", update="hooks", wrapping="shared"),
)


#: What has a requirement of its own, which a waiver can name; the reason is its id.
APART = (
    _no("accumulation/hsdp-other-parameters", gradients="no all-reduce", runs="skipped"),
    _no("accumulation/hsdp-other-parameters", gradients="no all-reduce", recompute="reentrant", wrapping="list"),
    _no("accumulation/late-parameters", gradients="unsynchronised", runs="skipped"),
    _no(
        "accumulation/low-zeros",
        reduction="unused too",
        gradients="unsynchronised",
        net="unused",
        dtype=("param and reduce", "reduce"),
    ),
    _no("reduction/divides-once", reduction="factor", dtype=("param", "param and reduce", "output", "reduce", "wider")),
    _no("reduction/divides-once", reduction="factor", mesh=UNCUT),
    _no("reduction/divides-once", reduction="factor", parallelism="tensor", mesh=UNCUT_IF_PAIRED),
    _no("interactions/runs-twice-re-entrant", recompute="reentrant", runs="twice"),
    _no("interactions/runs-twice-re-entrant", recompute="reentrant", wrapping="shared"),
    _no("interactions/state-between-of-pairs", reshard="pairs", asked="between", wrapping="shared"),
    _no(
        "interactions/state-between-of-pairs",
        reshard="pairs",
        asked=("between", "after forward"),
        prefetch=("forward", "both"),
    ),
    _no(
        "interactions/state-between-of-pairs",
        reshard="pairs",
        asked="before",
        prefetch=("forward", "both"),
        runs=("no grad", "eval"),
        wrapping=("parts", "shared"),
    ),
    _no("interactions/unused-and-frozen", reduction="unused too", runs="skipped", life="frozen and thawed"),
    _no("interactions/recomputed-for-two-losses", gradients="two losses", recompute="block"),
    _no("interactions/recomputed-with-hooks", modules="hooks before", recompute="block"),
    _no("autograd/reset-after-backward", life="exception in backward", wrapping=_all_but("wrapping", "wrapper")),
    *(_no("interactions/gathers-in-vain", runs=("no grad", "eval"), wrapping="wrapper", **each) for each in IN_TURN),
    *(_no("interactions/gathers-in-vain", asked="after forward", wrapping="wrapper", **each) for each in IN_TURN),
    _no("interactions/gathers-in-vain", prefetch="finished", gradients="two losses"),
    _no("interactions/gathers-in-vain", runs="skipped", prefetch=("backward", "both"), gradients="two losses"),
    *(
        _no(
            "interactions/gathers-in-vain",
            wrapping="parts",
            reshard=("never", "changed"),
            prefetch=("backward", "both"),
            **each,
        )
        for each in IN_TURN
    ),
    _no("interactions/gathers-what-stepped", update="hooks", prefetch="finished"),
    _no("interactions/gathers-what-stepped", update="hooks", wrapping="list", recompute="reentrant"),
    _no(
        "interactions/gathers-what-stepped",
        update="hooks",
        prefetch=("forward", "backward", "both"),
        recompute=_all_but("recompute", "none", "saved elsewhere"),
    ),
    _no("interactions/columns-in-pairs", rows="columns", reshard="pairs"),
)


def _by_first_value(rules: Iterable[Rule]) -> Mapping[tuple[str, str], list[Rule]]:
    """The rules with a value of their first dimension: few have to be looked at for the values of one scenario."""
    found: dict[tuple[str, str], list[Rule]] = {}
    for rule in rules:
        name, values = next(iter(rule.values.items()))
        for value in values:
            found.setdefault((name, value), []).append(rule)
    return found


_IMPOSSIBLE, _APART = _by_first_value(IMPOSSIBLE), _by_first_value(APART)


def _reason(rules: Mapping[tuple[str, str], list[Rule]], chosen: Mapping[str, str]) -> str:
    near = (rule for each in chosen.items() if each in rules for rule in rules[each])
    return next((rule.reason for rule in near if rule.holds(chosen)), "")


def conflict(chosen: Mapping[str, str]) -> str:
    """Why these values cannot go together; empty if they can. Dimensions may be missing."""
    return _reason(_IMPOSSIBLE, chosen)


def judged_apart(chosen: Mapping[str, str]) -> str:
    """The requirement that is about some of these values together; empty if there is none."""
    return _reason(_APART, chosen)


def barred(chosen: Mapping[str, str]) -> str:
    """Why covering arrays have no scenario with these values; empty if they may."""
    return conflict(chosen) or judged_apart(chosen)
