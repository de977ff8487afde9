"""``judge``: the suites from Python, on torch and on what cannot be judged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_conformance import Verdict, judge, standing


def test_a_run_comes_back_with_its_results(tmp_path: Path) -> None:
    """Those of the chapters asked for; the record file stays where it is wanted."""
    run = judge("torch", "gloo", only=["parity"], world="threads", record=tmp_path / "run.jsonl")
    assert {record.requirement.partition("/")[0] for record in run.records} == {"parity"}
    assert {record.verdict for record in run.records} == {Verdict.PASS}
    assert standing(run).state == "INCOMPLETE"
    assert (tmp_path / "run.jsonl").is_file()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"implementation": "nobody"}, "unknown implementation 'nobody': expected one of reference, torch, or"),
        ({"implementation": "nowhere:x"}, "implementation 'nowhere:x': cannot import 'nowhere'"),
        ({"only": "praity"}, "--only 'praity': expected a chapter or a requirement among these tests; is it parity"),
        ({"level": "maybe"}, "--level 'maybe': expected one of must, should, may, all"),
        ({"record": "/proc/none/run.jsonl"}, "--record /proc/none/run.jsonl: cannot be written"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_judged_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    """A ValueError, and no record of an earlier run is taken for it."""
    with pytest.raises(ValueError, match=re.escape(sentence)):
        judge(**{"backend": "gloo", **given})  # type: ignore[arg-type]
