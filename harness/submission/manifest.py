"""The manifest: what an archive holds, and the facts of its runs, in one form of JSON that has one spelling only.

Every fact in it is worked out from the members, so that a reader works it out anew and compares::

    records/01-torch.jsonl ─▶ claims, environment, seed, totals … ─┐
    sha256 of every member ────────────────────────────────────────┴▶ manifest.json, and the digest of all of it
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness import __version__
from harness.fields import is_deep
from harness.report.read import Run, missing
from harness.report.summary import standing
from harness.verdict import LEVELS, Verdict
from harness.waivers import Waiver

KIND, SCHEMA = "fsdp-conformance submission", 1
#: Verdicts of rows that were not run, each with its reason.
EXPLAINED = (Verdict.NOT_CLAIMED, Verdict.NOT_RUN)


@dataclass(frozen=True)
class Entry:
    """One run of an archive: the name and bytes of its record file, what was read in it, and the waivers it used.

    ``waiver_members`` names the waiver files in the order in which the run read them.
    """

    name: str
    data: bytes
    run: Run
    waivers: tuple[Waiver, ...] = ()
    waiver_members: tuple[str, ...] = ()

    @cached_property
    def claims(self) -> frozenset[str]:
        """The features that the header claims."""
        return frozenset(self.run.header.claims)

    @cached_property
    def _named(self) -> dict[tuple[str, str], list[int]]:
        named: dict[tuple[str, str], list[int]] = {}
        for place, waiver in enumerate(self.waivers):
            named.setdefault((waiver.requirement, waiver.nodeid), []).append(place)
        return named

    def waivers_naming(self, requirement: str, nodeid: str) -> list[Waiver]:
        """The waivers of a requirement, or of one row of it, in the order of the files."""
        places = [*self._named.get((requirement, ""), ()), *self._named.get(("", nodeid), ())]
        return [self.waivers[place] for place in sorted(places)]


def sha256(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def canonical(tree: Any) -> bytes:
    """The one spelling of a JSON tree: sorted keys, no spaces, UTF-8, and a line end.

    Lone surrogates, which UTF-8 has no bytes for, are escaped: the spelling is still one, and still JSON.
    """
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode("utf-8", "backslashreplace")


def manifest_of(entries: Sequence[Entry], members: Mapping[str, bytes]) -> dict[str, Any]:
    """The manifest of these runs and members (itself not among them)."""
    tree: dict[str, Any] = {
        "kind": KIND,
        "schema": SCHEMA,
        "suite_version": __version__,
        "members": {name: {"bytes": len(data), "sha256": sha256(data)} for name, data in members.items()},
        "runs": [facts_of(entry) for entry in entries],
    }
    return {**tree, "digest": sha256(canonical(tree))}


def facts_of(entry: Entry) -> dict[str, Any]:
    """What the manifest says of one run."""
    header, footer = entry.run.header, entry.run.footer
    return {
        "record": entry.name,
        "implementation": header.implementation,
        "backend": header.backend,
        "claims": header.claims,
        "not_claimed": header.not_claimed,
        "environment": header.environment,
        "suite_version": header.suite_version,
        "sources": header.sources,
        "plan": {"rows": len(header.plan), "sha256": header.plan_digest},
        "level": header.level,
        "worlds": header.worlds,
        "profile": header.profile,
        "seed": header.seed,
        "command": header.command,
        "started": header.started,
        "finished": footer.finished if footer else "",
        "exit_status": footer.exit_status if footer else None,
        "waivers": list(entry.waiver_members),
        "totals": totals(entry.run),
        "standing": str(standing(entry.run)),
    }


def totals(run: Run) -> dict[str, Any]:
    """Rows by level and verdict, and the sum: planned = executed + explained + missing."""
    levels = {level: Counter(str(row.verdict) for row in run.records if row.level == level) for level in LEVELS}
    explained = sum(row.verdict in EXPLAINED for row in run.records)
    return {
        "planned": len(set(run.header.plan)),
        "executed": len(run.records) - explained,
        "explained": explained,
        "missing": len(missing(run)),
        "levels": {level: dict(count) for level, count in levels.items() if count},
    }


# Reading one.


def read_manifest(data: bytes) -> dict[str, Any]:
    """The manifest in these bytes. Raises ValueError, whose words go on from its name."""
    try:
        tree = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON in UTF-8; submit the archive as bundle wrote it") from error
    if not isinstance(tree, dict) or tree.get("kind") != KIND or is_deep(tree):
        raise ValueError(f'does not say "kind": "{KIND}"; submit an archive that bundle wrote')
    if tree.get("schema") != SCHEMA or isinstance(tree["schema"], bool):
        raise ValueError(f"expected schema {SCHEMA}, got {tree.get('schema')!r:.40}; verify it with its own version")
    return tree


def unlike(told: Any, found: Any, where: str = "") -> Iterator[str]:
    """Every place where a manifest says something else than the members do, as a sentence."""
    if isinstance(told, dict) and isinstance(found, dict):
        for key in sorted({*told, *found}):
            place = f"{where}.{key}" if where else key
            if key not in told:
                yield f"says nothing of {place}, which is {_short(found[key])}"
            elif key not in found:
                yield f"says {place} is {_short(told[key])}, which nothing in the archive says"
            else:
                yield from unlike(told[key], found[key], place)
    elif isinstance(told, list) and isinstance(found, list) and len(told) == len(found):
        for index, (one, other) in enumerate(zip(told, found, strict=True)):
            yield from unlike(one, other, f"{where}[{index}]")
    elif type(told) is not type(found) or told != found:
        yield f"says {where} is {_short(told)}, but by the members it is {_short(found)}"


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, (str, int, float)) and len(repr(value)) < 80 else f"{value!r:.60} …"
