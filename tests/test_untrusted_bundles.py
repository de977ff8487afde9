"""Whatever somebody hands in as an archive, it is verified only if it is one that ``bundle`` wrote, to the byte.

Everything else is refused in sentences, and nothing of it is run, written to a disk, or read without a limit.
"""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from harness.commands import verify as command
from harness.submission import archive as archives
from harness.submission.archive import MANIFEST, MOST_MEMBERS, PAGE, NotABundle, open_archive, pack, unpack
from harness.submission.bundle import completed
from harness.submission.verify import Verification, verify
from tests import harmless
from tests.submission_samples import OTHER_RECORD, PLAN, RECORD, WAIVERS, Forger, as_lines, retold, sound, verified
from tests.untrusted_strategies import JUNK, TEXTS, as_json, changed, inputs, spoilt

MEMBERS = sound()
SOUND = pack(MEMBERS)
LINES: list[Any] = [json.loads(line) for line in MEMBERS[RECORD].splitlines()]


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    """Everything that verifying loads once is loaded, and then acts are reported."""
    assert verified(MEMBERS).is_verified
    harmless.start()


def judged(data: bytes) -> tuple[Verification | None, str]:
    """What verifying these bytes comes to: what was found, or why they are no archive; nothing runs in it."""
    return harmless.tried(lambda: verify(unpack(data, "s.zip"), lambda: PLAN), refusal=NotABundle)


def refused(data: bytes) -> str:
    """The sentences with which these bytes are refused, a line each."""
    found, why = judged(data)
    if found is None:
        return why
    assert not found.is_verified
    assert all(map(harmless.is_sentence, found.wrong))
    return as_lines(found)


# Archives of others.


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """The sound archive with members added, by a tool of somebody else."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as file:
        for name in sorted(MEMBERS):
            file.writestr(like_ours(name), MEMBERS[name], compress_type=how)
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def like_ours(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    """A member with the attributes of ours, or others."""
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    """Other bytes of the same length, wherever the archive has them."""
    assert len(old) == len(new)
    assert old in data
    return data.replace(old, new)


def counted(size: int) -> bytes:
    """The sound archive with members of which every one says that it is of this size."""
    data = bytearray(SOUND)
    start = data.find(b"PK\x01\x02")
    while start >= 0:
        struct.pack_into("<2L", data, start + 20, size, size)
        start = data.find(b"PK\x01\x02", start + 4)
    return bytes(data)


def flagged(flag: int) -> bytes:
    """The sound archive with a flag set in its first directory entry."""
    data = bytearray(SOUND)
    data[data.find(b"PK\x01\x02") + 8] |= flag
    return bytes(data)


def redated() -> bytes:
    """The sound archive as another tool would date it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in sorted(MEMBERS):
            info = like_ours(name)
            info.date_time = (2026, 11, 21, 4, 10, 8)
            file.writestr(info, MEMBERS[name])
    return buffer.getvalue()


def many() -> bytes:
    """More members than there may be."""
    return pack({f"records/{place:02}-x.jsonl": b"" for place in range(MOST_MEMBERS + 1)} | MEMBERS)


def alone(name: str, data: bytes = b"x") -> bytes:
    """A zip archive of somebody's own."""
    return pack({name: data})


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "an absolute path": (lambda: zipped((like_ours("/etc/passwd"), b"x")), "/etc/passwd: its name leads out of"),
    "a way up": (lambda: zipped((like_ours("records/../../x"), b"x")), "records/../../x: its name leads out of"),
    "a drive": (lambda: zipped((like_ours("C:x"), b"x")), "C:x: its name leads out of the archive"),
    "a backslash": (lambda: zipped((like_ours("records\\x"), b"x")), "records\\x: has a backslash"),
    "a zero byte": (lambda: patched(zipped((like_ours("zzzz"), b"x")), b"zzzz", b"z\0zz"), "z␀zz: has a zero byte"),
    "a folder": (lambda: zipped((like_ours("records/"), b"")), "records/: is a directory"),
    "a link": (lambda: zipped((like_ours("x", stat.S_IFLNK | 0o777), b"/etc/passwd")), "x: is a symbolic"),
    "a device": (lambda: zipped((like_ours("x", stat.S_IFCHR | 0o666), b"")), "x: is no regular file"),
    "a program": (lambda: zipped((like_ours("x", stat.S_IFREG | 0o755), b"")), "x: is no regular file"),
    "a stranger": (lambda: zipped((like_ours("evil.py"), b"1")), "evil.py: is no member that a submission has"),
    "a bell": (lambda: zipped((like_ours("a\x07b"), b"1")), "a␇b: is no member that a submission has"),
    "a name twice": (lambda: zipped((like_ours(PAGE), b"<p>")), "page.html: is in the archive 2 times"),
    "compression": (lambda: zipped(how=zipfile.ZIP_DEFLATED), "page.html: is compressed, and bundle stores"),
    "a bomb": (lambda: zipped((like_ours("records/09-x.jsonl"), b""), how=zipfile.ZIP_LZMA), "it might be a bomb"),
    "huge members": (lambda: counted(2**31), "the archive: its members claim to be larger than all of it"),
    "encryption": (lambda: flagged(1), "manifest.json: is encrypted"),
    "other flags": (lambda: flagged(4), "its dates, order or attributes are not those that bundle writes"),
    "other dates": (redated, "its dates, order or attributes are not those that bundle writes"),
    "too many": (many, f"members, and a submission at most {MOST_MEMBERS}; nothing of it was read"),
    "a foreign archive": (lambda: alone("x.py"), "is a zip archive without manifest.json, so no submission"),
    "an empty archive": (lambda: pack({}), "s.zip: "),
    "half of it": (lambda: SOUND[: len(SOUND) // 2], "was cut short or added to"),
    "its end lost": (lambda: SOUND[:-1], "was cut short or added to"),
    "its start lost": (lambda: SOUND[100:], "s.zip: is not a zip archive"),
    "something behind": (lambda: SOUND + b"\n", "was cut short or added to"),
    "something before": (lambda: b"PK" + SOUND, "has a directory that is not where it must be"),
    "a script before": (lambda: b"#!/bin/sh\n" + SOUND, "s.zip: is not a zip archive"),
    "a comment": (lambda: SOUND[:-2] + b"\1\0!", "was cut short or added to"),
    "64 bits": (lambda: SOUND[:-22] + b"PK\x06\x07" + bytes(16) + SOUND[-22:], "in the 64-bit form"),
    "no archive": (lambda: b"hello", "s.zip: is not a zip archive"),
    "nothing": (lambda: b"", "s.zip: is not a zip archive"),
    "a pickle": (lambda: b"PK\x80\x02}q\x00.", "s.zip: "),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_in_its_own_words(name: str) -> None:
    """Paths that lead out, links, bombs, encryption, strangers, and what is no archive at all."""
    make, sentence = HOSTILE[name]
    said = refused(make())
    assert sentence in said, said


def test_an_archive_is_not_read_beyond_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that is too large is refused for its size."""
    monkeypatch.setattr(archives, "MOST_BYTES", len(SOUND) - 1)
    (tmp_path / "s.zip").write_bytes(SOUND)
    with pytest.raises(NotABundle, match=r"s\.zip: is larger than 0 MiB, which no submission is"):
        open_archive(tmp_path / "s.zip")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("none.zip", "cannot be read (No such file"), ("", "is not a regular file"), ("a\x1b", "a␛: cannot be read")],
)
def test_what_cannot_be_read_is_status_2(
    tmp_path: Path, name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names it, without what would steer a terminal."""
    assert command.main([str(tmp_path / name)], lambda: PLAN) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert harmless.is_sentence(said.rstrip("\n"))


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
    event("no archive" if why else "refused" if found and found.wrong else "verified")
    assert (found is not None and found.is_verified) == (other == SOUND)
    assert found is None or all(map(harmless.is_sentence, found.wrong))


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
    """An archive of these members is verified only if they are the sound ones."""
    found, why = judged(pack(members))
    assert why or found is not None
    assert (found is not None and found.is_verified) == (members == MEMBERS)
    assert found is None or all(map(harmless.is_sentence, found.wrong))


@inputs(150)
@given(data=st.data())
def test_no_fact_of_a_manifest_can_be_changed(data: st.DataObject) -> None:
    """Whatever a manifest says in place of what the members say, its digest anew or not, it is refused."""
    tree = data.draw(changed(json.loads(MEMBERS[MANIFEST])))
    if data.draw(st.booleans()) and isinstance(tree, dict):
        try:
            members = retold(MEMBERS, lambda told: (told.clear(), told.update(tree)))
        except ValueError:  # no number of JSON's
            return
    else:
        text = as_json(tree, is_ascii=data.draw(st.booleans()))
        members = {**MEMBERS, MANIFEST: text.encode("utf-8", "surrogatepass")}
    event("retold" if members != MEMBERS else "the same")
    assert_refused_unless_same(members)


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
    event("refused" if found.wrong else "verified")
    assert all(map(harmless.is_sentence, found.wrong))
    assert json.dumps(found.as_json())
    assert all(map(harmless.is_sentence, command.said_of(found)))


@inputs(30)
@given(text=TEXTS)
def test_what_a_run_says_of_itself_cannot_steer_a_terminal(text: str) -> None:
    """Names and texts of a header are printed on one line each, and seen."""
    forger = Forger()
    forger.header |= {"implementation": text, "profile": text, "level": text, "started": text, "command": text}
    found = verified(forger.members())
    assert not found.is_verified
    assert all(map(harmless.is_sentence, command.said_of(found)))


def test_long_lines_take_no_time() -> None:
    """Texts of megabytes where there are words, spaces and features are judged in seconds."""
    forger = Forger()
    long = "a " * 500_000
    forger.header |= {"implementation": long, "claims": [str(number) for number in range(50_000)]}
    for one in forger.rows:
        one |= {"reproduce": f"{one['reproduce']} --case '{long}'", "features": [str(n) for n in range(50_000)]}
    with harmless.harmless():
        found = verified(forger.members())
    assert not found.is_verified
