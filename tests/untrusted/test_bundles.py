"""An archive from anybody is verified only if it is one that ``bundle`` wrote, to the byte.

Everything else is refused in sentences, and nothing of it is run, written to a disk, or read without a limit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from harness import __version__
from harness.commands import verify as command
from harness.submission.archive import MANIFEST, SubmissionError, pack, read_file, unpack
from harness.submission.bundle import completed
from harness.submission.verify import Verification, verify
from tests.submission.submission_samples import (
    OTHER_RECORD,
    RECORD,
    SOURCES,
    WAIVERS,
    Forger,
    as_lines,
    restated,
    verified,
)
from tests.untrusted import harmless
from tests.untrusted.hostile_archives import HOSTILE, MEMBERS, SOUND
from tests.untrusted.strategies import JUNK, TEXTS, as_json, changed, inputs, spoilt

LINES: list[Any] = [json.loads(line) for line in MEMBERS[RECORD].splitlines()]


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    """Everything that verifying loads once is loaded, and then acts are reported."""
    assert verified(MEMBERS).is_verified
    harmless.start()


def judged(data: bytes) -> tuple[Verification | None, str]:
    """What verifying these bytes finds, or why they cannot be read; nothing runs in it."""
    return harmless.tried(lambda: verify(unpack(data, "s.zip"), SOURCES), refusal=SubmissionError)


def refused(data: bytes) -> str:
    """The sentences with which these bytes are refused, a line each."""
    found, why = judged(data)
    if found is None:
        return why
    assert not found.is_verified
    assert all(map(harmless.is_sentence, found.problems))
    return as_lines(found)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_in_its_own_words(name: str) -> None:
    """Paths that lead out, links, bombs, encryption, other files, and what is no archive at all."""
    make, sentence = HOSTILE[name]
    printed = refused(make())
    assert sentence in printed, printed


def test_an_archive_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    """A file that is too large is refused for its size."""
    (tmp_path / "s.zip").write_bytes(SOUND)
    assert read_file(tmp_path / "s.zip", len(SOUND)) == SOUND
    with pytest.raises(SubmissionError, match=r"s\.zip: is larger than 0 MiB, the most that a submission may have"):
        read_file(tmp_path / "s.zip", len(SOUND) - 1)


# Archives that were changed.


@st.composite
def flipped(draw: st.DrawFn, data: bytes) -> bytes:
    """As many bytes, of which one to three are others, so that the archive is still one."""
    other = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        other[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(other)


@inputs(150)
@given(data=st.data())
def test_no_byte_of_an_archive_can_be_changed(data: st.DataObject) -> None:
    """An archive of other bytes is refused, wherever they differ, be it in a date."""
    other = data.draw(flipped(SOUND) | flipped(SOUND) | spoilt(SOUND, most=3))
    found, why = judged(other)
    event("no archive" if why else "refused" if found and found.problems else "verified")
    assert (found is not None and found.is_verified) == (other == SOUND)
    assert found is None or all(map(harmless.is_sentence, found.problems))


def test_no_bit_of_the_directory_can_be_changed() -> None:
    """Names, dates, sizes and attributes, in the directory and before each member: each bit counts."""
    start = SOUND.index(b"PK\x01\x02")
    places = [*range(30 + len(MANIFEST)), *range(start, len(SOUND))]
    for place in places:
        other = bytearray(SOUND)
        other[place] ^= 1 << place % 8
        found, why = judged(bytes(other))
        assert why or (found is not None and not found.is_verified), place


@inputs(100)
@given(data=st.data())
def test_no_member_can_be_changed(data: st.DataObject) -> None:
    """Of members that are other bytes, swapped, lost or added in an archive that is well formed, none is verified."""
    members = dict(MEMBERS)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*MEMBERS, OTHER_RECORD, "waivers/02-x.toml"]))
        what = data.draw(st.sampled_from(["spoilt", "other", "swapped", "lost"]))
        if what == "lost":
            members.pop(name, None)
        elif what == "swapped":
            other = data.draw(st.sampled_from(sorted(MEMBERS)))
            members[name], members[other] = members.get(other, b""), members.get(name, b"")
        else:
            members[name] = data.draw(spoilt(members.get(name, b"")) if what == "spoilt" else st.binary(max_size=40))
    event("without a manifest" if MANIFEST not in members else "with one")
    assert_refused_unless_same(members)


def assert_refused_unless_same(members: dict[str, bytes]) -> None:
    """An archive is refused unless its members are ours, or differ in the version that the manifest states."""
    found, why = judged(pack(members))
    assert why or found is not None
    if found is not None:
        assert all(map(harmless.is_sentence, (*found.problems, *found.notes)))
        as_ours = restated(members, lambda tree: tree.update(suite_version=__version__))
        is_spelt = members == restated(members, lambda tree: None)
        assert found.is_verified == (as_ours == MEMBERS and is_spelt)
        assert members == MEMBERS or not found.is_verified or found.notes


@inputs(150)
@given(data=st.data())
def test_no_fact_of_a_manifest_can_be_changed(data: st.DataObject) -> None:
    """Whatever a manifest states in place of what the members give, spelt as ``bundle`` does or not, it is refused."""
    tree = data.draw(changed(json.loads(MEMBERS[MANIFEST])))
    if data.draw(st.booleans()) and isinstance(tree, dict):
        members = restated(MEMBERS, lambda stated: (stated.clear(), stated.update(tree)))
    else:
        text = as_json(tree, is_ascii=data.draw(st.booleans()))
        members = {**MEMBERS, MANIFEST: text.encode("utf-8", "surrogatepass")}
    event("restated" if members != MEMBERS else "the same")
    assert_refused_unless_same(members)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_deeply_nested_manifest_is_not_read(depth: int) -> None:
    """Reading it, or writing it again to compare, could run out of stack."""
    manifest = json.loads(MEMBERS[MANIFEST])
    text = json.dumps({**manifest, "suite_version": "@"}).replace('"@"', "[" * depth + "]" * depth)
    assert "manifest.json: Expected `str`, got `array`" in refused(pack({**MEMBERS, MANIFEST: text.encode()}))


@inputs(60)
@given(data=st.data())
def test_any_record_file_is_judged_in_sentences(data: st.DataObject) -> None:
    """A run of whatever lines, all hashed anew, is no traceback, and what is said of it can be shown."""
    lines = list(LINES)
    for place in data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=3)):
        lines[place] = data.draw(changed(lines[place]) | JUNK)
    file = "".join(as_json(line) + "\n" for line in lines).encode("utf-8", "surrogatepass")
    waivers = data.draw(st.just(MEMBERS[WAIVERS]) | spoilt(MEMBERS[WAIVERS]))
    members, why = harmless.tried(completed, {RECORD: file, WAIVERS: waivers})
    if why:
        event("not bundled")
        return
    found, _ = judged(pack(members))
    assert found is not None
    event("refused" if found.problems else "verified")
    assert all(map(harmless.is_sentence, found.problems))
    assert json.dumps(command.as_json(found))
    assert all(map(harmless.is_sentence, command.lines_of(found)))


@inputs(30)
@given(text=TEXTS)
def test_what_a_run_says_of_itself_cannot_steer_a_terminal(text: str) -> None:
    """Names and texts of a header are printed on one line each, and seen."""
    forger = Forger()
    forger.header |= {"implementation": text, "profile": text, "level": text, "started": text, "left_out": 1}
    found = verified(forger.members())
    assert not found.is_verified
    assert all(map(harmless.is_sentence, command.lines_of(found)))


def test_long_lines_take_no_time() -> None:
    """Texts of megabytes, and lists of thousands of items, are judged in seconds."""
    forger = Forger()
    long = "a " * 500_000
    forger.header |= {"implementation": long, "claims": [str(number) for number in range(5_000)], "left_out": 1}
    forger.header["waiver_files"] *= 1000
    for one in forger.results:
        one |= {"reproduce": long, "features": [str(number) for number in range(5_000)]}
    with harmless.harmless():
        found = verified(forger.members())
    assert not found.is_verified
