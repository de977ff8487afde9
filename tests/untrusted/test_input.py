"""Waivers, cases, answers of ranks and what they leave in files are read for what they are, or refused in a line."""

from __future__ import annotations

import json
import os
import struct
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from harness.data.case import Case, from_json, from_text
from harness.data.text import visible
from harness.data.type_checks import misfit
from harness.waivers.waiver import Waiver, read_waivers
from harness.worlds.processes import flight_recorder
from harness.worlds.system.running_mark import read_mark
from harness.worlds.wire import decode, encode
from harness.worlds.workers import handle, worker
from suites.generated.net_strategies import generated_cases
from suites.generated.nets import Block, Net
from suites.kit.cases import Stack, TrainingCase
from suites.kit.strategies import net_cases
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
    net_cases(),
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


@inputs(60)
@given(case=CASES)
def test_a_case_that_is_drawn_is_never_refused(case: Case) -> None:
    """What the suites draw has the types that it declares, and its text is taken."""
    back, refusal = harmless.tried(from_text, json.dumps(case.as_json()))
    assert (back, refusal) == (case, "")


# Answers of ranks.

TREE = {
    "loss": 0.5, "grad": torch.arange(6.0).reshape(2, 3), "steps": [1, (2.0, None)], "raw": b"xyz", (1, "a"): True,
    "big": 1 << 70, "dtype": torch.bfloat16, "shape": torch.Size([2, 3]), "where": torch.device("cpu"),
}  # fmt: skip
MESSAGE = encode(["done", [{"rank": 0, "fate": "returned", "value": TREE, "error": "", "at": 1.5}]])
_START = struct.calcsize("<4sQ")
_LENGTH = struct.unpack_from("<4sQ", MESSAGE)[1]
HEADER, BODY = json.loads(MESSAGE[_START : _START + _LENGTH]), MESSAGE[_START + _LENGTH :]
PLAIN = (type(None), bool, int, float, str, bytes, torch.dtype, torch.Size, torch.device, torch.Tensor)


@inputs(200)
@given(data=st.data())
def test_an_answer_is_plain_data_or_refused_in_a_sentence(data: st.DataObject) -> None:
    """Any message, from random bytes to one whose tree is changed, is a tree of plain data or one sentence."""
    message = data.draw(st.just(MESSAGE) | st.binary(max_size=40))
    if data.draw(st.booleans()):
        header = as_json(data.draw(changed(HEADER))).encode("utf-8", "surrogatepass")
        message = struct.pack("<4sQ", b"FSDP", len(header)) + header + BODY
    if data.draw(st.booleans()):
        message = data.draw(spoilt(message))
    tree, refusal = harmless.tried(decode, message)
    event("refused" if refusal else "read")
    assert refusal.startswith("malformed message") or (not refusal and is_plain(tree))


def is_plain(tree: Any) -> bool:
    """Whether a tree has nothing but data in it."""
    if isinstance(tree, dict):
        return is_plain([*tree.keys(), *tree.values()])
    return all(map(is_plain, tree)) if type(tree) in (list, tuple) else isinstance(tree, PLAIN)


# What ranks leave in files.

CALL = {
    "collective_seq_id": 4, "profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"],
    "input_sizes": [[5]], "input_dtypes": ["Float"], "output_sizes": [[5]], "output_dtypes": ["Float"],
    "retired": False, "state": "scheduled", "is_p2p": False,
}  # fmt: skip
FLIGHT = {"calls": [CALL, {**CALL, "collective_seq_id": 5}], "groups": {"0": [0, 1]}, "is_cut": False}


@inputs(60)
@given(data=st.data())
def test_the_flight_of_a_rank_is_told_in_plain_words_or_not_at_all(place: Path, data: st.DataObject) -> None:
    """Whatever a rank has written down as its last collectives, it is words for a report, or nothing."""
    (place / "flight").write_bytes(data.draw(documents([as_json(data.draw(changed(FLIGHT)))])))
    with harmless.harmless():
        found = flight_recorder.read(place)
        words = "" if found is None else found.told() + found.unfinished()
    event("not told" if found is None else "told")
    assert visible(words) == words
    assert words.count("\n") <= 10


@inputs(30)
@given(data=st.binary(max_size=40))
def test_the_mark_and_the_log_of_a_rank_are_data(place: Path, data: bytes) -> None:
    """Any bytes where the number of the running rank and the log should be are a number or none, and some text."""
    for name in (worker.MARK, worker.LOG):
        (place / name).write_bytes(data)
    with harmless.harmless():
        rank, log = read_mark(place / worker.MARK), handle._read(place / worker.LOG, 3, 20)
    assert rank is None or (len(data) == 4 and rank >= 0)
    assert len(log) <= 20
    assert log in data[3:].decode(errors="replace")


@pytest.mark.parametrize("name", [worker.MARK, worker.LOG, "flight"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "nothing"])
def test_what_is_no_file_any_more_is_not_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    """Where a rank has put a pipe, a link or a folder in place of its file, there is nothing to read."""
    (tmp_path / "secret").write_text('{"calls": [], "groups": {}, "is_cut": false}')
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "link":
        (tmp_path / name).symlink_to(tmp_path / "secret")
    elif kind == "folder":
        (tmp_path / name).mkdir()
    read = {worker.MARK: read_mark, worker.LOG: lambda path: handle._read(path, 0, 99) or None}
    with harmless.harmless():
        assert read.get(name, lambda path: flight_recorder.read(path.parent))(tmp_path / name) is None
