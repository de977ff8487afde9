"""Archives that ``bundle`` did not write, each with the sentence that refuses it."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from collections.abc import Callable

from harness.submission.archive import MOST_MEMBERS, PAGE, pack
from tests.submission.submission_samples import sound

MEMBERS = sound()
SOUND = pack(MEMBERS)


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """The sound archive with members added, by another tool."""
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


def many(count: int) -> bytes:
    """The sound archive with so many more members."""
    return pack({f"records/{place:02}-x.jsonl": b"" for place in range(10, 10 + count)} | MEMBERS)


def understated() -> bytes:
    """An archive of thousands of members whose end record counts one."""
    data = bytearray(many(5000))
    struct.pack_into("<2H", data, len(data) - 14, 1, 1)
    return bytes(data)


LINK, DEVICE, PROGRAM = (like_ours("records/09-x.jsonl", mode) for mode in (0o120777, 0o020666, 0o100755))
NO_MEMBER, REWRITTEN = "is no member of a submission", "the archive: was rewritten by another tool"
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "an absolute path": (lambda: zipped((like_ours("/etc/passwd"), b"x")), f"/etc/passwd: {NO_MEMBER}"),
    "a way up": (lambda: zipped((like_ours("records/../../x"), b"x")), f"records/../../x: {NO_MEMBER}"),
    "a drive": (lambda: zipped((like_ours("C:x"), b"x")), f"C:x: {NO_MEMBER}"),
    "a backslash": (lambda: zipped((like_ours("records\\x"), b"x")), f"records\\x: {NO_MEMBER}"),
    "a zero byte": (lambda: patched(zipped((like_ours("zzzz"), b"x")), b"zzzz", b"z\0zz"), f"z␀zz: {NO_MEMBER}"),
    "a directory": (lambda: zipped((like_ours("records/"), b"")), f"records/: {NO_MEMBER}"),
    "another file": (lambda: zipped((like_ours("evil.py"), b"1")), f"evil.py: {NO_MEMBER}"),
    "a bell": (lambda: zipped((like_ours("a\x07b"), b"1")), f"a␇b: {NO_MEMBER}"),
    "a link": (lambda: zipped((LINK, b"/etc/passwd")), REWRITTEN),
    "a device": (lambda: zipped((DEVICE, b"")), REWRITTEN),
    "a program": (lambda: zipped((PROGRAM, b"")), REWRITTEN),
    "a name twice": (lambda: zipped((like_ours(PAGE), b"<p>")), REWRITTEN),
    "other flags": (lambda: flagged(4), REWRITTEN),
    "other dates": (redated, REWRITTEN),
    "compression": (lambda: zipped(how=zipfile.ZIP_DEFLATED), "page.html: is compressed, so it might be a zip bomb"),
    "a bomb": (lambda: zipped((like_ours("records/09-x.jsonl"), b""), how=zipfile.ZIP_LZMA), "might be a zip bomb"),
    "huge members": (lambda: counted(2**31), "the archive: its members claim more bytes than the archive has"),
    "encryption": (lambda: flagged(1), "is encrypted, password required"),
    "too many": (lambda: many(MOST_MEMBERS), f"s.zip: has 68 members, and a submission at most {MOST_MEMBERS}"),
    "more than it counts": (understated, "has an end record that does not match its bytes"),
    "a foreign archive": (lambda: pack({"x.py": b"x"}), "is a zip archive without manifest.json, so it is not a"),
    "an empty archive": (lambda: pack({}), "s.zip: is a zip archive without manifest.json"),
    "half of it": (lambda: SOUND[: len(SOUND) // 2], "does not end like an archive that bundle wrote"),
    "its end lost": (lambda: SOUND[:-1], "does not end like an archive that bundle wrote"),
    "its start lost": (lambda: SOUND[100:], "s.zip: is not a zip archive"),
    "something behind": (lambda: SOUND + b"\n", "does not end like an archive that bundle wrote"),
    "something before": (lambda: b"PK" + SOUND, "has an end record that does not match its bytes"),
    "a script before": (lambda: b"#!/bin/sh\n" + SOUND, "s.zip: is not a zip archive"),
    "a comment": (lambda: SOUND[:-2] + b"\1\0!", "does not end like an archive that bundle wrote"),
    "64 bits": (lambda: SOUND[:-22] + b"PK\x06\x07" + bytes(16) + SOUND[-22:], "cut short, added to, or 64-bit"),
    "no archive": (lambda: b"hello", "s.zip: is not a zip archive"),
    "nothing": (lambda: b"", "s.zip: is not a zip archive"),
    "a pickle": (lambda: b"PK\x80\x02}q\x00.", "does not end like an archive that bundle wrote"),
}  # fmt: skip
