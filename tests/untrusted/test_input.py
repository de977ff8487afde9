"""Waivers, cases, answers of ranks and what they leave in files are read for what they are, or refused in a line."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from harness.data.case import Case, from_json, from_text
from harness.data.type_checks import misfit
from harness.waivers.waiver import Waiver, read_waivers
from suites.generated.net_strategies import generated_cases
from suites.kit.cases import Stack, TrainingCase
from suites.kit.nets import Block, Net
from suites.kit.strategies import training_cases
from suites.saving.chains import ChainNet
from tests.untrusted import harmless
from tests.untrusted.strategies import LITERALS, as_json, changed, documents, inputs, spoilt


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    """From here on, acts are reported."""
    harmless.start()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to be written to again for each input."""
    return tmp_path_factory.mktemp("untrusted")


# Waivers.

ENTRY = {
    "requirement": "offload/pinned",
    "subject": "torch",
    "issue": "https://example.org/1",
    "reason": "pinned on the wrong device",
    "expires": "@day@",
    "versions": ">=2.11,<2.14",
}
OTHER = {**ENTRY, "nodeid": "t.py::x[threads]", "versions": "==2.13.*"}
del OTHER["requirement"]
TOML = {
    **LITERALS, "@day@": "2027-03-01", "@nan@": "nan", "@inf@": "-inf", "@hex@": "0x10", "@beyond@": "1e999",
    "@deep@": "[" * 1500 + "]" * 1500, "@nested@": "{a=" * 400 + "1" + "}" * 400, "@moment@": "2027-03-01T10:00:00Z",
    "@no day@": "2027-02-30", "@dotted@": "{" + "a." * 1500 + "a=1}", "@octal@": "0o17", "@many@": "''" + "'" * 1000,
}  # fmt: skip
VERSIONS = st.sampled_from([
    "@day@", "@no day@", "@moment@", "@dotted@", "@octal@", "@many@", "===x", "==" + "9" * 4500, ">=1!0,~=2.1",
    ">=" * 99, "<2.*", "==1.0+" + "a" * 99, "," * 99, "!=2.13.0rc1,>2", "torch>=2",
])  # fmt: skip


def as_toml(value: Any) -> str:
    """TOML text of a value; what TOML has no words for is left as it is, and no TOML."""
    if isinstance(value, str):
        return TOML.get(value) or json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else json.dumps(key, ensure_ascii=False)


@st.composite
def waiver_files(draw: st.DrawFn) -> bytes:
    """The bytes of a waiver file of one or two entries, changed in values, as text or as bytes."""
    lines = []
    for entry in draw(st.sampled_from([[ENTRY], [ENTRY, OTHER]])):
        tree = draw(changed(entry))
        if isinstance(tree, dict) and draw(st.booleans()):
            tree[draw(st.sampled_from(sorted(ENTRY)))] = draw(VERSIONS)
        lines.append("[[waiver]]")
        lines += [f"{_key(key)} = {as_toml(value)}" for key, value in tree.items()] if isinstance(tree, dict) else []
    return draw(documents(lines))


@inputs(100)
@given(data=waiver_files())
def test_a_waiver_file_is_read_or_refused_in_a_sentence(place: Path, data: bytes) -> None:
    """Any file is waivers that can be asked, or one sentence that names the file."""
    path = place / "waivers.toml"
    path.write_bytes(data)
    read, refusal = harmless.tried(read_waivers, path)
    event("refused" if refusal else "read")
    assert not refusal or path.name in refusal
    for waiver in read or ():
        assert type(waiver) is Waiver
        with harmless.harmless():
            assert waiver.covers("offload/pinned", "t.py::x[threads]", "torch", "2.13.0+cpu") in (True, False)
            assert waiver.expired(date(2026, 11, 21)) in (True, False)
        assert all(isinstance(value, str) for value in waiver.as_json().values())


# Cases.

CASES = st.one_of(
    st.sampled_from([
        TrainingCase(2, Stack(3, ("mlp",)), seed=1), ChainNet((3, 2), tied=True), Block("residual", (Block("norms"),)),
        Net(3, (Block("linear"),)),
    ]),
    training_cases(at_least=1),
    generated_cases(),
)  # fmt: skip


@inputs(60)
@given(data=st.data())
def test_the_text_of_a_case_is_a_case_or_refused_in_a_sentence(data: st.DataObject) -> None:
    """What ``--case`` is given is a case with fields of their types, which reads back, or one sentence."""
    text = as_json(data.draw(changed(data.draw(CASES).as_json())))
    if data.draw(st.booleans()):
        text = data.draw(spoilt(text.encode())).decode("utf-8", "surrogateescape")
    case, refusal = harmless.tried(from_text, text)
    event("refused" if refusal else "read")
    if not refusal:
        assert isinstance(case, Case)
        assert misfit(case) == ""
        assert repr(from_json(case.as_json())) == repr(case)
