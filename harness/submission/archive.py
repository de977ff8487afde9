"""The archive itself: members to bytes, the same each time, and back, without a byte being written to a disk.

Members are stored, not compressed, in the order of their names, and all of one date: so an archive depends on nothing
but its members, and none can grow when it is read. What no such archive has is told in a sentence, and not read.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.report.text import one_line, plural

MANIFEST, PAGE = "manifest.json", "page.html"
#: The bytes of an archive, and how many members it may have: two hundred runs of every row failing have room.
MOST_BYTES, MOST_MEMBERS = 256 * 2**20, 64
_NAME = re.compile(
    r"manifest\.json|page\.html|(records/\d\d-[\w.-]{1,80}\.jsonl)|(waivers/\d\d-[\w.-]{1,80}\.toml)", re.A
)
_DATE, _MODE = (1980, 1, 1, 0, 0, 0), stat.S_IFREG | 0o644
#: The end of an archive without a comment: signature, two disks, members on this one and in all, directory, comment.
_END = struct.Struct("<4s4H2LH")
_END64 = b"PK\x06\x07"
_BROKEN = (zipfile.BadZipFile, RuntimeError, OSError, EOFError, ValueError, struct.error, IndexError)


class NotABundle(ValueError):
    """What was given is no submission, or cannot be read; one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True)
class Archive:
    """The members that could be read, and what is wrong with the archive around them."""

    data: bytes
    members: dict[str, bytes]
    wrong: tuple[str, ...] = ()


def pack(members: Mapping[str, bytes]) -> bytes:
    """The archive of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = 3, _MODE << 16
            file.writestr(info, members[name])
    return buffer.getvalue()


def open_archive(path: Path) -> Archive:
    """Read an archive from a file. Raises ``NotABundle``."""
    try:
        if path.exists() and not path.is_file():
            raise NotABundle(f"{path}: is not a regular file; name the archive that bundle wrote")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotABundle(f"{path}: cannot be read ({error.strerror}); check its name and its rights") from error
    return unpack(data, path.name)


def unpack(data: bytes, name: str) -> Archive:
    """The members of an archive in memory. Raises ``NotABundle``, calling it by its name; lesser harm is told."""
    why = _no_archive(data)
    if why:
        raise NotABundle(f"{name}: {why}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            infos = file.infolist()
            if MANIFEST not in {info.orig_filename for info in infos}:
                raise NotABundle(f"{name}: is a zip archive without {MANIFEST}, so no submission; name one")
            wrong = list(_directory(infos, len(data)))
            sound = [info for info in infos if not any(_member(info))] if not wrong else []
            wrong += [sentence for info in infos for sentence in _member(info)]
            members, harm = _read(file, sound)
    except NotABundle:
        raise
    except _BROKEN as error:
        raise NotABundle(f"{name}: the archive is damaged ({error}); fetch it again") from error
    wrong += harm
    if not wrong and pack(members) != data:
        wrong = [
            "the archive: its dates, order or attributes are not those that bundle writes, so something rewrote it"
        ]
    return Archive(data, members, tuple(map(one_line, wrong)))


def _no_archive(data: bytes) -> str:
    """Why these bytes are not looked into at all; "" if they may be."""
    if len(data) > MOST_BYTES:
        return f"is larger than {MOST_BYTES >> 20} MiB, which no submission is; name one"
    if not data.startswith(b"PK"):
        return "is not a zip archive; name the archive that bundle wrote"
    end = data[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\x05\x06"):
        return "does not end as an archive that bundle wrote does, so it was cut short or added to; fetch it again"
    _, *disks, here, count, size, start, comment = _END.unpack(end)
    if any(disks) or here != count or comment or data[-_END.size - 20 :].startswith(_END64):
        return "is a zip archive of several parts, or in the 64-bit form, as no submission is; name one"
    if count > MOST_MEMBERS:
        return f"has {count} members, and a submission at most {MOST_MEMBERS}; nothing of it was read"
    if size > MOST_MEMBERS * 512 or start + size + _END.size != len(data):
        return "has a directory that is not where it must be, so it was cut short or added to; fetch it again"
    return ""


def _directory(infos: list[zipfile.ZipInfo], most: int) -> Iterator[str]:
    """What is wrong with all members together."""
    for name, count in Counter(info.orig_filename for info in infos).items():
        if count > 1:
            yield f"{name}: is in the archive {count} times, so what it holds depends on who reads it"
    if sum(info.file_size for info in infos) > most:
        yield "the archive: its members claim to be larger than all of it, as if packed, or a bomb; nothing was read"


def _member(info: zipfile.ZipInfo) -> Iterator[str]:
    """What is wrong with one member, before it is read."""
    name = info.orig_filename
    where = one_line(name, 200) or "a member without a name"
    for is_so, what in _ODDITIES:
        if is_so(info):
            yield f"{where}: {what}"
            return
    if not _NAME.fullmatch(name):
        yield f"{where}: is no member that a submission has; only {MANIFEST}, {PAGE}, records and waivers are"


def _mode(info: zipfile.ZipInfo) -> int:
    return info.external_attr >> 16


def _leaves(info: zipfile.ZipInfo) -> bool:
    name = info.orig_filename
    return name.startswith("/") or ".." in name.split("/") or bool(re.match(r"[A-Za-z]:", name))


#: What a member may not be, and the words for it; the first that holds is told.
_ODDITIES: tuple[tuple[Callable[[zipfile.ZipInfo], bool], str], ...] = (
    (_leaves, "its name leads out of the archive; it was not read"),
    (lambda info: "\\" in info.orig_filename, "has a backslash in its name, which is a folder on some machines only"),
    (
        lambda info: "\0" in info.orig_filename,
        "has a zero byte in its name, which hides the rest of it from some readers",
    ),
    (lambda info: info.orig_filename.endswith("/"), "is a directory; a submission has files only"),
    (lambda info: stat.S_ISLNK(_mode(info)), "is a symbolic link; a submission has regular files only"),
    (lambda info: _mode(info) != _MODE, "is no regular file as bundle writes it; a submission has no others"),
    (lambda info: bool(info.flag_bits & 0x41), "is encrypted; a submission is open to everybody"),
    (
        lambda info: info.compress_type != zipfile.ZIP_STORED,
        "is compressed, and bundle stores; submit the archive as it was written (it was not read, it might be a bomb)",
    ),
    (lambda info: info.compress_size != info.file_size, "is stored, but has two sizes; it was not read"),
)


def _read(file: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> tuple[dict[str, bytes], list[str]]:
    members, wrong = {}, []
    for info in infos:
        try:
            members[info.filename] = file.read(info)
        except _BROKEN as error:
            wrong.append(f"{info.filename}: is damaged ({error}); fetch the archive again")
    return members, wrong


def contents(members: Mapping[str, bytes]) -> str:
    """How much there is, in words."""
    return f"{plural(len(members), 'member')}, {sum(map(len, members.values()))} bytes"
