"""Scripts as Hypothesis draws them: a walk through what is legal, led by wishes.

Each draw is a wish for one act, whatever has gone before; acts that lead to it come first. So every script is legal,
and a wish that shrinks to nothing, or to something simpler, leaves the others what they are::

    wishes    step                                (nothing)    load full          unshard blocks.0
    acts      forward    backward all    step                  save   load full   unshard blocks.0
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from suites.kit.hsdp import hsdp_meshes
from suites.kit.net_cases import GeneratedCase
from suites.kit.net_strategies import generated_cases, leaves, nests, nets_with
from suites.kit.nets import LEAVES, Block, Net
from suites.kit.script_acts import Play
from suites.kit.scripts import ScriptCase, owners
from suites.kit.strategies import world_sizes

#: Acts by what they are about; ``{group}`` and its like stand for each of them.
TRAINING = ("forward", "backward oldest", "step", "drop", "step", "backward newest", "zero", "backward all", "step")
LOOKING = ("look", "evaluate")
SETTING = ("rate 0.0625", "rate 0.125", "clip 0.125")
GATHERING = ("unshard {group}", "begin {group}", "wait", "reshard")
KEEPING = ("keep forward", "free forward", "keep backward", "free backward")
STATE = ("save", "load {form}", "recall {form}")
META = ("save", "restart {form}")
FREEZING = ("freeze {module}", "thaw {module}")
ACCUMULATING = ("accumulate",)
IN_SHARDS = ("accumulate shards",)
#: How many wishes a script comes of, and how many acts at most.
WISHES, ACTS = 7, 10

LINEAR = Block("linear")
#: Two linear layers one after the other at most, since results must stay exact.
PLAIN = (
    (LINEAR, LINEAR),
    (Block("sequence", (LINEAR, LINEAR)),),
    (LINEAR, Block("residual", (LINEAR,))),
    (Block("residual", (LINEAR,)), Block("sequence", (LINEAR,))),
    (LINEAR,),
)


@cache
def small_nets(kinds: tuple[str, ...] = tuple(LEAVES)) -> st.SearchStrategy[Net]:
    """One or two blocks."""
    return nets_with(leaves(kinds) | nests(kinds), kinds=kinds)


#: Of which every rank has the same state.
without_buffers = small_nets(tuple(kind for kind in LEAVES if kind != "norms"))
plain_nets = st.builds(Net, st.integers(1, 3), st.sampled_from(PLAIN), plain=st.just(True))


def acts(case: ScriptCase, kinds: tuple[str, ...]) -> list[str]:
    """The acts of these kinds that there are for the case's groups and modules."""
    groups = sorted(set(owners(case).values()))
    blocks = [f"blocks.{place}" for place in range(len(case.net.blocks))] if isinstance(case.net, Net) else []
    words = {"group": groups, "module": sorted({*blocks, *groups} - {""}), "form": ["sharded", "full"]}
    found = []
    for kind in kinds:
        field = kind.partition("{")[2].rstrip("}")
        found += [kind.format(**{field: word}).strip() for word in words[field]] if field else [kind]
    return found


def walk(case: ScriptCase, wishes: list[str]) -> tuple[str, ...]:
    """What becomes of wishes: see the top of this file."""
    play = Play(case)
    return tuple(act for wish in wishes if wish for act in play.pursue(wish))[:ACTS]


@st.composite
def scripts(
    draw: st.DrawFn, /, *kinds: tuple[str, ...], cases: st.SearchStrategy[GeneratedCase] | None = None, **fixed: Any
) -> ScriptCase:
    """A net, a plan, and a script of acts of these kinds, besides training; ``fixed`` are fields as they must be."""
    drawn = draw(cases if cases is not None else generated_cases(nets=small_nets(), batch=1))
    case = ScriptCase(**{**vars(drawn), "steps": 0, **fixed})
    others = acts(case, sum(kinds, ()))
    wish = st.sampled_from(("", *TRAINING)) | st.sampled_from(others or TRAINING)
    wishes = draw(st.lists(wish, min_size=WISHES, max_size=WISHES))
    return replace(case, acts=walk(case, wishes))


def exact_scripts(*kinds: tuple[str, ...], replicas: bool = False, **fixed: Any) -> st.SearchStrategy[ScriptCase]:
    """The same on plain nets, whose results are exact; on replicas of shards, if asked for."""
    return scripts(*kinds, cases=plain_cases(replicas), **{"dtype": "float64", **fixed})


@st.composite
def plain_cases(draw: st.DrawFn, replicas: bool) -> GeneratedCase:
    """Plain nets and their plans."""
    mesh = draw(hsdp_meshes(2, power_of_two=True)) if replicas else ()
    ranks = mesh[0] * mesh[1] if mesh else draw(world_sizes(2, power_of_two=True))
    return draw(generated_cases(nets=plain_nets, batch=1, mesh=mesh, world_size=ranks))
