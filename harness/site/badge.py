"""A badge for a README: the standing of a subject, as a picture and as the JSON that shields.io draws one from."""

from __future__ import annotations

from typing import Any

from harness.records.record import Verdict
from harness.records.standing import State, counts
from harness.site.history import History

LABEL = "FSDP conformance"
#: As shields.io names them, and what they are.
COLOURS = {
    State.CONFORMS: ("brightgreen", "#0b7a4b"),
    State.DOES_NOT_CONFORM: ("red", "#c22f1d"),
    State.INCOMPLETE: ("lightgrey", "#5d6975"),
}
#: Of the badge's letters, in pixels: the picture says how wide its text is, so that any font fits.
LETTER = 6.6


def endpoint_of(history: History) -> dict[str, Any]:
    """What https://shields.io/badges/endpoint-badge reads."""
    colour, _ = COLOURS[history.shown.standing.state]
    return {"schemaVersion": 1, "label": LABEL, "message": message_of(history), "color": colour}


def message_of(history: History) -> str:
    """``conforms · 985 MUST``, or how many results of that level fail."""
    run = history.shown.given.run
    found, state = counts(run.records), history.shown.standing.state
    if state is State.CONFORMS:
        claimed = " to its claims" if found["must", Verdict.NOT_CLAIMED] else ""
        return f"conforms{claimed} · {found['must', Verdict.PASS]} MUST"
    if state is State.INCOMPLETE:
        return "incomplete"
    return f"{found['must', Verdict.FAIL] + found['must', Verdict.STALE_WAIVER]} MUST fail"


def drawing_of(history: History) -> dict[str, Any]:
    """What the template draws: two texts, their widths in pixels, and the colour of the second."""
    message = message_of(history)
    widths = {"left": round(len(LABEL) * LETTER), "right": round(len(message) * LETTER)}
    return {"label": LABEL, "message": message, "colour": COLOURS[history.shown.standing.state][1], **widths}
