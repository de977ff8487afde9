"""Playing a situation on ranks, and comparing it with the oracle."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

from harness.data.comparison import Allowance, exact
from harness.trial import Trial
from harness.trial.refusals import ERRORS, as_data
from harness.worlds.base import Program, SubjectFailure
from harness.worlds.rank import Rank
from suites.oracle.expected import Expected, expected
from suites.oracle.layout import put_end_to_end
from suites.oracle.sharded import Sharded
from suites.oracle.situation import UNDER_WAY
from suites.oracle.together import apart, looks, losses
from suites.oracle.unsharded import State

Test = Callable[..., None]


def follows(trial: Trial, program: Program, want: Expected, *given: Any) -> None:
    """Play a situation on ranks, and compare it with the oracle.

    ``given`` is what the program is given if not the situation alone.
    """
    agrees(trial, trial.run(program, *(given or (want.case,))), want)


def agrees(trial: Trial, traces: list[list[State]], want: Expected) -> None:
    """Compare what ranks have shown action by action, so that the first that goes wrong is named."""
    actions = want.case.actions
    wanted = [[want.on_rank(place, number) for place in range(len(actions))] for number in range(len(traces))]
    for place, action in enumerate(actions):
        dues = [due[place] for due in wanted]
        gots = [_shown(trace[place], due) for trace, due in zip(traces, dues, strict=True)]
        when = f", after action {place + 1}, {action}"
        gots = compare(trial, want.case, gots, dues, want.within, when)
        agree_together(trial, gots, dues, want.together, when)
    agree_together(trial, [*map(losses, traces)], [*map(losses, wanted)], want.together, ", of all forwards")


def agree_together(trial: Trial, gots: list[Any], dues: list[State], shares: Mapping[str, float], when: str) -> None:
    """Require that what ranks have shown is off by these shares at most; other shapes than are due are told already."""
    if not shares:
        return
    seen, wanted = [*map(looks, gots)], [*map(looks, dues)]
    for look, share in shares.items():
        found = apart(seen, wanted, look)
        if found is not None:
            off, size = found
            words = f"{look} of all ranks{when}, are together off by {off:.3g}, of {size:.3g}"
            trial.holds(off <= share * size, f"{words}; allowed is a share of {share:.3g}")


def compare(
    trial: Trial, case: Any, gots: list[Any], dues: list[Any], within: Allowance = exact, when: str = ""
) -> list[Any]:
    """Compare what each rank has shown with what is due; what that was, put together if it was due so."""
    gots = put_end_to_end(gots, dues, getattr(case, "shards", case.world_size))
    for number, (got, due) in enumerate(zip(gots, dues, strict=True)):
        trial.agree(f"rank {number}{when}", got, due, within)
    return gots


def _shown(got: State, due: State) -> State:
    """What is expected of what was seen: of some parameters it is open how they are registered, and what gradients."""
    shown = {name: got[name] for name in due}
    for look in due.keys() & set(UNDER_WAY):
        shown[look] = {name: got[look].get(name) for name in due[look]}
    if "registered" in due:
        shown["registered"] = {
            name: {fact: got["registered"].get(name, {}).get(fact) for fact in facts}
            for name, facts in due["registered"].items()
        }
    return shown


def follows_or_refuses(
    trial: Trial, program: Program, want: Expected, *names: str, error: tuple[str, ...] = ERRORS
) -> None:
    """Play a situation on ranks, and compare it with the oracle; or all refuse it and name one of these."""
    right_or_refused(trial, program, want.case, lambda traces: agrees(trial, traces, want), *names, error=error)


def right_or_refused(
    trial: Trial,
    program: Program,
    case: Any,
    judge: Callable[[list[Any]], None],
    *names: str,
    error: tuple[str, ...] = ERRORS,
) -> None:
    """Judge what ranks return; or all raise an error that names one of these."""
    found = trial.run(tried, case, program)
    if all("done" in got for got in found):
        judge([got["done"] for got in found])
        return
    for number, got in enumerate(found):
        trial.is_refusal(f"rank {number}", got.get("raised"), *names, error=error)


def tried(rank: Rank, case: Any, program: Program) -> dict[str, Any]:
    """What a program returns, or what it raised."""
    try:
        return {"done": program(rank, case)}
    except Exception as error:
        return {"raised": as_data(error)}


def trains(trial: Trial, program: Program, case: Any, *args: Any) -> None:
    """Run a program that trains, and compare each rank's steps with its parts of the unsharded model's, one by one."""
    want, traces = expected(case), trial.run(program, case, *args)
    dues = [want.trace(number) for number in range(len(traces))]
    trial.agree("steps of each rank", [*map(len, traces)], [*map(len, dues)])
    for step, (gots, due) in enumerate(zip(zip(*traces, strict=False), zip(*dues, strict=True), strict=False), 1):
        compare(trial, case, [*gots], [*due], want.within, f", step {step}")


class Tried:
    """The cases of a test that tries them itself: one by one for ``--case``, where Hypothesis draws none."""

    def __init__(self, inner_test: Test) -> None:
        self.inner_test = inner_test


def tried_by(judge: Callable[[Trial, Test], None]) -> Callable[[Test], Test]:
    """Have a test of one case, its ``case``, tried by ``judge`` on as many as that chooses: see ``failure_of``."""

    def decorate(test: Test) -> Test:
        tried = Tried(test)

        @wraps(test)
        def each(*, trial: Trial) -> None:
            __tracebackhide__ = True
            judge(trial, tried.inner_test)

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name != "case"]
        vars(each).update(hypothesis=tried, __signature__=signature.replace(parameters=kept))
        return each

    return decorate


def failure_of(trial: Trial, test: Test, case: Any) -> SubjectFailure | None:
    """What a test fails with on a case, if it does. Raises it if the time of the test is up."""
    failure = trial.failure_of(partial(test, trial=trial, case=case))
    if failure is not None and failure.cause == "hung":
        raise failure
    return failure


def sees(trial: Trial, kind: type[Sharded], case: Any, acts: Sequence[str], **want: Any) -> None:
    """Do these actions; what the last gives, as ``found``, and what is then seen must be so, or as for the rank."""
    looks = [look for look in want if look != "found"]
    for number, got in enumerate(trial.run(kind.seen, case, acts, *looks)):
        for look, due in want.items():
            trial.agree(f"rank {number}, {look}", got[look], due(number) if callable(due) else due)


def finds(trial: Trial, program: Program, case: Any, want: Any, *args: Any, within: Allowance = exact) -> None:
    """Run a program, and compare what each rank finds with ``want``, or with what it gives for the rank's number."""
    gots = trial.run(program, case, *args)
    compare(trial, case, gots, [want(number) if callable(want) else want for number in range(len(gots))], within)
