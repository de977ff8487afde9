"""The manifest: the SHA-256 of each member, and of each run its versions, its standing and its counts by verdict.

{"kind": "fsdp-conformance submission", "schema": 2, "suite_version": "0.1.0",
 "members": {"page.html": "9f86d0…", "records/01-torch.jsonl": "2c26b4…"},
 "runs": {"records/01-torch.jsonl": {"standing": "CONFORMS", "counts": {"must": {"pass": 944}}, …}}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec import Struct, to_builtins

from harness.records.facts import Facts, facts_of
from harness.records.reader import RecordFileError, Run, run_in
from harness.submission.archive import MANIFEST, SubmissionError
from harness.waivers.waiver import Waiver, waivers_in

#: Schema 1 repeated most of the records in the manifest.
KIND: Final = "fsdp-conformance submission"
SCHEMA: Final = 2


class Manifest(Struct, frozen=True, tag_field="kind", tag=KIND):
    """The manifest; ``members`` has digests, ``suite_version`` is that of ``bundle``."""

    schema: Literal[2]
    suite_version: str
    members: dict[str, str]
    runs: dict[str, Facts]


@dataclass(frozen=True)
class Contents:
    """What the members hold: runs by name, waivers by the SHA-256 of their file, and files that cannot be read."""

    runs: dict[str, Run]
    waivers: dict[str, tuple[Waiver, ...]]
    damage: tuple[str, ...]


def sha256(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def contents_of(members: Mapping[str, bytes]) -> Contents:
    """Read the record files and waiver files among the members."""
    runs: dict[str, Run] = {}
    waivers: dict[str, tuple[Waiver, ...]] = {}
    damage = []
    for name, data in sorted(members.items()):
        try:
            if name.startswith("records/"):
                runs[name] = run_in(data, name)
            elif name.startswith("waivers/"):
                waivers[sha256(data)] = waivers_in(data, name)
        except (RecordFileError, ValueError) as error:
            damage.append(str(error))
    return Contents(runs, waivers, tuple(damage))


def manifest_of(members: Mapping[str, bytes], runs: Mapping[str, Run], suite_version: str) -> bytes:
    """The manifest of these members and the runs in them, as JSON; ``suite_version`` is that of ``bundle``."""
    digests = {name: sha256(data) for name, data in members.items() if name != MANIFEST}
    manifest = Manifest(SCHEMA, suite_version, digests, {name: facts_of(run) for name, run in runs.items()})
    return f"{json.dumps(to_builtins(manifest), sort_keys=True, indent=1)}\n".encode()


def read_manifest(data: bytes) -> Manifest:
    """The manifest in these bytes. Raises ``SubmissionError``."""
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (ValueError, RecursionError) as error:
        advice = "verify it with the version that wrote it, or unpack its record files and bundle them again"
        raise SubmissionError(f"{MANIFEST}: {error}; {advice}") from error
