"""The archive: from members to bytes, the same bytes each time, and back to members in memory.

Members are stored uncompressed, sorted by name, with one date and one mode. So an archive is a function of its members
(packing what was read gives the same bytes), nothing in it grows when it is read, and nothing is written to a disk.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.data.text import one_line

MANIFEST, PAGE = "manifest.json", "page.html"
#: Limits of an archive: its bytes, and its members.
MOST_BYTES, MOST_MEMBERS = 256 * 2**20, 64
_NAME = re.compile(r"manifest\.json|page\.html|records/\d\d-[\w.-]{1,80}\.jsonl|waivers/\d\d-[\w.-]{1,80}\.toml", re.A)
_DATE, _MODE = (1980, 1, 1, 0, 0, 0), stat.S_IFREG | 0o644
#: The end record of a zip file: signature, two disks, members on this disk and in all, directory size and start,
#: length of the comment.
_END = struct.Struct("<4s4H2LH")
_END64 = b"PK\x06\x07"
_BROKEN = (zipfile.BadZipFile, RuntimeError, OSError, EOFError, ValueError, struct.error, IndexError)


class SubmissionError(ValueError):
    """Files that cannot be bundled, or an archive that cannot be read; one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True)
class Archive:
    """The bytes of an archive and its members; there are none if the archive itself has problems."""

    data: bytes
    members: dict[str, bytes]
    problems: tuple[str, ...] = ()


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most ``most`` bytes. Raises ``SubmissionError``."""
    try:
        if path.exists() and not path.is_file():
            raise SubmissionError(f"{path}: is not a regular file; name another")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise SubmissionError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from error
    if len(data) > most:
        raise SubmissionError(f"{path}: is larger than {most >> 20} MiB, the most that a submission may have")
    return data


def pack(members: Mapping[str, bytes]) -> bytes:
    """The archive of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = 3, _MODE << 16
            file.writestr(info, members[name])
    return buffer.getvalue()


def unpack(data: bytes, name: str) -> Archive:
    """Read an archive in memory. Raises ``SubmissionError`` if ``bundle`` cannot have written it."""
    reason = _unreadable(data)
    if reason:
        raise SubmissionError(f"{name}: {reason}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            infos = file.infolist()
            problems = [one_line(problem) for problem in _problems(infos, len(data))]
            members = {} if problems else {info.filename: file.read(info) for info in infos}
    except _BROKEN as error:
        raise SubmissionError(f"{name}: cannot be read ({error}); get the original archive") from error
    if MANIFEST not in {info.orig_filename for info in infos}:
        raise SubmissionError(f"{name}: is a zip archive without {MANIFEST}, so it is not a submission")
    if not problems and pack(members) != data:
        problems = [
            "the archive: was rewritten by another tool (a date, an order, a mode, a name twice); get the original"
        ]
    return Archive(data, {} if problems else members, tuple(problems))


def _unreadable(data: bytes) -> str:
    """Why these bytes are not given to ``zipfile``; "" if they may be."""
    if len(data) > MOST_BYTES:
        return f"is larger than {MOST_BYTES >> 20} MiB, the most that a submission may have"
    if not data.startswith(b"PK"):
        return "is not a zip archive; name the archive that bundle wrote"
    end = data[-_END.size :]
    if len(end) < _END.size or not end.startswith(b"PK\x05\x06") or data[-_END.size - 20 :].startswith(_END64):
        return "does not end like an archive that bundle wrote: cut short, added to, or 64-bit; get it again"
    _, disk, first_disk, here, count, size, start, comment = _END.unpack(end)
    if count > MOST_MEMBERS:
        return f"has {count} members, and a submission at most {MOST_MEMBERS}"
    is_ours = (disk, first_disk, here, comment) == (0, 0, count, 0) and size <= MOST_MEMBERS * 512
    if not is_ours or start + size + _END.size != len(data):
        return "has an end record that does not match its bytes: cut short, or added to; get it again"
    return ""


def _problems(infos: list[zipfile.ZipInfo], most: int) -> Iterator[str]:
    """Why members are not read: paths that lead out of the archive, directories, other files, zip bombs."""
    if sum(info.file_size for info in infos) > most:
        yield "the archive: its members claim more bytes than the archive has, as in a zip bomb; nothing was read"
    for info in infos:
        name = one_line(info.orig_filename, 200) or "a member without a name"
        if not _NAME.fullmatch(info.orig_filename):
            yield f"{name}: is no member of a submission ({MANIFEST}, {PAGE}, records/*.jsonl and waivers/*.toml are)"
        elif info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            yield f"{name}: is compressed, so it might be a zip bomb; submit the archive as bundle wrote it"
