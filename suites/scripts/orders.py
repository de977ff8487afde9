"""Scripts in which one act comes after another, with passes between: few, with as many pairs of acts as they can have.

Four acts make twelve pairs, each in either order; with six of them in a script, two are enough::

    save, GO, freeze, look, negate, step      negate, GO, freeze, step, save, look

A search that takes the best of some attempts, always the same; so a run tries what any other run has tried. A script
that fails is told without the acts that it fails without. Imports no ``torch.distributed``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import settings

from harness.trial import Trial
from harness.vendor import Feature
from harness.vendor.bounds import claims
from suites.generated.net_cases import Group
from suites.kit.nets import Block, Net
from suites.kit.strategies import is_thorough
from suites.oracle.judging import Test, failure_of, tried_by
from suites.scripts import strategies as draws
from suites.scripts.acts import Play
from suites.scripts.cases import ScriptCase, plain
from suites.scripts.strategies import act_of, without

Acts = tuple[str, ...]
#: What is wished for, by what must be claimed for it.
WISHES: dict[Feature, Acts] = {
    Feature.FULLY_SHARD: (
        *("drop", "zero", "backward newest", "backward all", "rate 0.0625"),
        *(*draws.LOOKING, *draws.KEEPING, *draws.FREEZING, *draws.TOGGLING, *draws.EDITING),
        *(*draws.ALONE, *draws.ABANDONING, *draws.OWNING),
    ),
    Feature.ACCUMULATION: draws.ACCUMULATING,
    Feature.UNSHARD: draws.GATHERING,
    Feature.STATE_DICT: (*draws.STATE, *draws.REPLACING),
    Feature.META_DEVICE: draws.META,
    Feature.RESET: draws.FAILING,
    Feature.DIVIDE_FACTOR: draws.DIVIDING,
}
#: What comes between wishes, with which probability; and how a script ends, where that is legal.
BETWEEN = {"forward": 0.15, "backward oldest": 0.2}
END = ("wait", "reshard", "forward", "backward all", "step", "reshard", "look")
#: How many acts a script has at most, and how many passes that have gradients: see [Note: exact scripts].
ACTS, PASSES = 16, 6
#: How many attempts there are at each script, and how many wishes are compared for each act.
ATTEMPTS, COMPARED = 8, 8

_LINEAR = Block("linear")
#: Two blocks: one is sharded, with inputs added or not, both are as a list, or the second alone, and all is freed.
PLANS = (
    plain(),
    plain(net=Net(3, (_LINEAR, Block("residual", (_LINEAR,))), plain=True)),
    plain(groups=(Group(("blocks.0", "blocks.1")), Group())),
    plain(groups=(Group(("blocks.1",), True), Group(("",), True))),
)
#: Each of them is, so that backward may gather one ahead of the other.
APART = (plain(groups=(Group(("blocks.0",), True), Group(("blocks.1",), False), Group())),)


def in_any_order(
    *first: ScriptCase,
    plans: Sequence[ScriptCase] = PLANS,
    count: int = 24,
    more: Acts = (),
    less: Acts = (),
    waiting: int = 1,
    **situation: Any,
) -> Callable[[Test], Test]:
    """Have a test of one script, its ``case``, tried on these, and on ``count`` in this situation.

    Those have ``more`` acts or ``less`` than are usual, and so many forwards ``waiting`` at once. If the profile is
    thorough there are four times as many, and if it is not to repeat itself, others each time. In processes, which take
    longer, there are half as many.
    """

    def judge(trial: Trial, test: Test) -> None:
        __tracebackhide__ = True
        assert settings.default is not None
        seed = 0 if settings.default.derandomize else random.SystemRandom().getrandbits(32)
        claimed = (wish for feature, some in WISHES.items() if feature in claims() for wish in some)
        wishes = [wish for wish in (*claimed, *more) if wish not in less]
        cases = [replace(one, **situation) for one in plans]
        size = count * (4 if is_thorough() else 1) // (1 if trial.kind == "threads" else 2)
        for case in (*first, *orders(cases, wishes, size, seed, waiting)):
            failure = failure_of(trial, test, case)
            if failure is not None and trial.shrinking.is_wanted:
                least = shortest(case, lambda one: failure_of(trial, test, one) is not None)
                failure = failure_of(trial, test, least) or failure
            if failure is not None:
                raise failure

    return tried_by(judge)


def orders(
    plans: Sequence[ScriptCase], wishes: Sequence[str], count: int, seed: int = 0, waiting: int = 1
) -> Iterator[ScriptCase]:
    """So many scripts for these plans in turn, each with pairs of acts that the ones before have not."""
    chance, seen = random.Random(seed), set[tuple[str, str]]()
    for number in range(count):
        case = plans[number % len(plans)]
        attempts = [_ended(case, _attempt(case, wishes, seen, chance), waiting) for _ in range(ATTEMPTS)]
        best = max(attempts, key=lambda acts: len(pairs(acts) - seen))
        seen |= pairs(best)
        yield replace(case, acts=best)


def pairs(acts: Acts) -> set[tuple[str, str]]:
    """The kind of every act with that of each that comes later."""
    return set(combinations(map(kind, acts), 2))


def kind(act: str) -> str:
    """The first word."""
    return act.partition(" ")[0]


def _attempt(case: ScriptCase, wishes: Sequence[str], seen: Collection[tuple[str, str]], chance: random.Random) -> Acts:
    play, acts = Play(case), list[str]()
    while len(acts) < ACTS:
        some = [act_of(case, wish) for wish in chance.sample(wishes, min(COMPARED, len(wishes)))]
        acts += play.pursue(max(some, key=lambda act: sum((kind(other), kind(act)) not in seen for other in acts)))
        for act, share in BETWEEN.items():
            if chance.random() < share:
                acts += play.pursue(act)
    return tuple(acts)


def _ended(case: ScriptCase, acts: Acts, waiting: int) -> Acts:
    """Of these acts as many as there may be, and then what shows where they have led, as far as that is legal."""
    play, done, passes = Play(case), list[str](), 0
    for act in (*acts[: ACTS - len(END)], *END):
        is_pass = kind(act) in ("forward", "cut", "accumulate")
        may = not is_pass or (len(play.pending) < waiting and passes < PASSES)
        if may and play.does(act):
            done.append(act)
            passes += is_pass
    return tuple(done)


def shortest(case: ScriptCase, fails: Callable[[ScriptCase], bool]) -> ScriptCase:
    """A script that fails, of which no single act more can be left out."""
    counts = [1] * len(case.acts)
    for place in reversed(range(len(case.acts))):
        fewer = [*counts[:place], 0, *counts[place + 1 :]]
        if fails(replace(case, acts=without(case, case.acts, fewer))):
            counts = fewer
    return replace(case, acts=without(case, case.acts, counts))
