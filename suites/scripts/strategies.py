"""Scripts as Hypothesis draws them: a walk through what is legal, led by wishes.

Each draw is a wish for one act, whatever has gone before; acts that lead to it come first. Then some acts are left out,
with those that are not legal without them. So every script is legal, and when it shrinks, acts go one by one while the
others stay what they are::

    wishes      step                               unshard blocks.0    look
    acts        forward    backward all    step    unshard blocks.0    look
    left out               backward all
    script      forward                            unshard blocks.0    look
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from suites.generated.net_cases import GeneratedCase, Group
from suites.generated.net_strategies import generated_cases, leaves, nets_with
from suites.kit.nets import Block, Net
from suites.kit.strategies import world_sizes
from suites.oracle.situation import AUTOMATIC, MANUAL
from suites.scripts.acts import Play
from suites.scripts.cases import ScriptCase, owners

#: Acts by what they are about. ``group#1`` stands for the second of the case's groups, or, if there is none, for the
#: first again; so the same wishes fit any net.
TRAINING = ("forward", "backward oldest", "step", "forward", "backward newest", "drop", "backward all", "zero")
#: Few kinds of training, where other acts are to come between; and many forwards, so that some wait for others.
BASIC = ("forward", "backward oldest", "step")
FORWARDS = ("forward",) * 3
#: One pass.
GO = ("forward", "backward oldest")
LOOKING = ("look", "evaluate")
ALONE = ("look module#0", "forward module#0", "look module#1", "forward module#1")
CUT = ("cut module#0", "cut module#1")
OWNING = ("stash", "flip parameter#0", "exchange parameter#1", "hook parameter#2", "exchange", "hook")
ABANDONING = ("abandon oldest", "abandon newest")
REPEATING = ("repeat oldest", "repeat newest")
SETTING = ("rate 0.0625", "rate 0.125", "clip 0.125")
DIVIDING = ("divide 4.0",)
GATHERING = ("unshard group#0", "begin group#0", "wait", "reshard", "unshard group#1", "begin group#1")
CANCELLING = ("cancel",)
KEEPING = ("keep forward", "free forward", "keep backward", "free backward")
STATE = ("save", "load full", "load sharded", "recall full", "recall sharded")
META = ("restart full", "restart sharded")
TOGGLING = ("toggle module#0", "toggle module#1", "guide")
FREEZING = ("freeze module#0", "thaw module#0", "freeze module#1", "thaw module#1", "freeze module#2")
EDITING = ("negate module#0", "negate module#1")
REPLACING = ("assign module#0", "swap module#0", "assign module#1", "swap module#1")
FAILING = ("fail module#0", "fail module#1")
ACCUMULATING = ("accumulate", "withhold oldest")
IN_SHARDS = ("accumulate shards",)
FINALIZING = ("finalize", "finalize", MANUAL, AUTOMATIC)
#: How many wishes a script comes of, and how many acts at most.
WISHES, ACTS = 8, 10
#: Which acts of a script count: most. Shrinking tries to do without each.
COUNTS = st.lists(st.integers(0, 15), min_size=ACTS, max_size=ACTS)

LINEAR = Block("linear")
#: Two linear layers one after the other at most, since results must stay exact.
PLAIN = (
    (LINEAR,),
    (LINEAR, LINEAR),
    (Block("sequence", (LINEAR, LINEAR)),),
    (LINEAR, Block("residual", (LINEAR,))),
    (Block("residual", (LINEAR,)), Block("sequence", (LINEAR,))),
    (LINEAR, LINEAR),
)


@cache
def small_nets(*kinds: str) -> st.SearchStrategy[Net]:
    """One or two blocks of few parameters, of which one at most has blocks in it; these kinds come besides."""
    every = ("linear", "mlp", "root parameters", *kinds)
    return nets_with(leaves(every), kinds=every)


@cache
def small_cases(*kinds: str) -> st.SearchStrategy[GeneratedCase]:
    """Such nets, and their plans."""
    return generated_cases(nets=small_nets(*kinds), batch=1)


plain_nets = st.builds(Net, st.integers(1, 3), st.sampled_from(PLAIN), plain=st.just(True))


def act_of(case: ScriptCase, wish: str) -> str:
    """A wish in words that fit the case: ``unshard group#1`` may be ``unshard blocks.0``, or ``unshard``, the root."""
    kind, _, what = wish.partition(" ")
    word, _, number = what.partition("#")
    if not number:
        return wish
    owned = owners(case)
    named = {"group": sorted(set(owned.values())), "parameter": sorted(owned)}.get(word) or modules(case)
    return f"{kind} {named[int(number) % len(named)]}".strip()


def modules(case: ScriptCase) -> list[str]:
    """The blocks, and all modules but the root that are sharded by themselves."""
    blocks = {f"blocks.{place}" for place in range(len(case.net.blocks))} if isinstance(case.net, Net) else set()
    return sorted(blocks | set(owners(case).values()) - {""})


def walk(case: ScriptCase, wishes: list[str]) -> tuple[str, ...]:
    """What becomes of wishes: see the top of this file."""
    play = Play(case)
    return tuple(act for wish in wishes if wish for act in play.pursue(act_of(case, wish)))[:ACTS]


def without(case: ScriptCase, done: tuple[str, ...], counts: list[int]) -> tuple[str, ...]:
    """The acts that count, and of those the ones that are legal without the others."""
    play = Play(case)
    return tuple(act for act, count in zip(done, counts, strict=False) if count and play.does(act))


@cache
def wishes(*kinds: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    """Wishes of these kinds, of one that is given twice twice as many. They shrink to none."""
    return st.lists(st.sampled_from(("", *sum(kinds, ()))), min_size=WISHES, max_size=WISHES)


@st.composite
def scripts(
    draw: st.DrawFn, cases: st.SearchStrategy[GeneratedCase], /, *kinds: tuple[str, ...], **fixed: Any
) -> ScriptCase:
    """Nets and plans as ``cases`` draw them, and acts of these kinds; ``fixed`` are other fields."""
    wished, counts = draw(wishes(*kinds)), draw(COUNTS)
    case = ScriptCase(**{**vars(draw(cases)), "steps": 0, **fixed})
    return replace(case, acts=without(case, walk(case, wished), counts))


def exact_scripts(*kinds: tuple[str, ...], pairs: bool = False, **fixed: Any) -> st.SearchStrategy[ScriptCase]:
    """The same on plain nets, whose results are exact; kept in pairs of ranks, if asked."""
    cases = generated_cases(nets=plain_nets, batch=1, world_size=world_sizes(2, power_of_two=True))
    return scripts(cases.map(in_pairs) if pairs else cases, *kinds, **{"dtype": "float64", **fixed})


@st.composite
def roots_apart(draw: st.DrawFn) -> GeneratedCase:
    """Two blocks that are roots, in a net that is not sharded."""
    net = draw(st.builds(Net, st.integers(1, 3), st.sampled_from(PLAIN[3:]), plain=st.just(True)))
    groups = tuple(Group((f"blocks.{place}",), draw(st.sampled_from([None, True, False]))) for place in (0, 1))
    return draw(
        generated_cases(nets=st.just(net), groups=groups, batch=1, world_size=world_sizes(2, power_of_two=True))
    )


def in_pairs(case: GeneratedCase) -> GeneratedCase:
    """Four ranks, of which pairs keep after forward whatever has no other setting."""
    settings = [2 if group.reshard_after_forward is None else group.reshard_after_forward for group in case.groups]
    groups = tuple(Group(group.modules, setting) for group, setting in zip(case.groups, settings, strict=True))
    return replace(case, world_size=4, groups=groups)
