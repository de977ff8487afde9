"""The files that a page carries: its records as they were read, and the same as CTRF, each packed by gzip.

They are links to ``data:`` addresses, so the page stays one file, and needs no network and no script to hand them out.
Different builds of zlib pack the same bytes differently, so pages are compared by what they carry.
"""

from __future__ import annotations

import base64
import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from harness.exports.ctrf import ctrf_of
from harness.records.output import json_document
from harness.records.reader import Run

#: How many bytes a file may have when it is packed; larger ones are left out, and the page says so.
MOST_BYTES = 2 * 2**20
_PREFIX = "data:application/gzip;base64,"


@dataclass(frozen=True)
class Download:
    """One file: what it is, what to save it as, its address, empty where it is too large, and its size in words."""

    what: str
    name: str
    href: str
    size: str


def downloads_of(run: Run) -> tuple[Download, ...]:
    """The files of one run; records only where their bytes are known, which is so for files that were read."""
    return tuple(_download(*file) for file in _files(run))


def _files(run: Run) -> Iterator[tuple[str, str, bytes]]:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", run.path.name.removesuffix(".jsonl"))[:80].strip(".-") or "run"
    if run.packed is not None:
        yield "records (JSON, a line each)", f"{name}.jsonl.gz", run.packed
    yield (
        "CTRF (JSON)",
        f"{name}.ctrf.json.gz",
        gzip.compress(json_document(ctrf_of(run), indent=None).encode(), 6, mtime=0),
    )


def _download(what: str, name: str, data: bytes) -> Download:
    size = f"{max(1, round(len(data) / 1000))} kB"
    if not data or len(data) > MOST_BYTES:
        return Download(what, name, "", size)
    return Download(what, name, _PREFIX + base64.b64encode(data).decode("ascii"), size)


def is_same_page(theirs: bytes, ours: str) -> bool:
    """Whether a page is this one, and carries the same files, by whatever build of zlib they were packed."""
    if theirs == ours.encode("utf-8"):
        return True
    carried = _unpacked(ours, sys.maxsize - 1)
    size = sum(len(data) for data in carried[1::2])
    try:
        return _unpacked(theirs.decode("utf-8"), size) == carried
    except ValueError:
        return False


def _unpacked(page: str, most: int) -> list[str | bytes]:
    """The page cut at the files it carries, with what is in these, ``most`` bytes in all; ValueError if it is not."""
    parts: list[str | bytes] = []
    for place, part in enumerate(re.split(f'{re.escape(_PREFIX)}([^"]*)', page)):
        parts.append(_unpack(part, most) if place % 2 else part)
        most -= len(parts[-1]) if place % 2 else 0
    return parts


def _unpack(text: str, most: int) -> bytes:
    try:
        unpacker = zlib.decompressobj(wbits=31)
        data = unpacker.decompress(base64.b64decode(text, validate=True), most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(data) > most or not unpacker.eof or unpacker.unused_data:
        raise ValueError("cut, too large, or followed by more")
    return data
