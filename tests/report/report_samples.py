"""Runs and rows for the report's tests, and a page taken apart."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from harness.records.reader import Run
from harness.records.record import SCHEMA, Footer, Header, Record, Verdict

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}&lt;\x00\u202e\ud800]]>"


def row(name: str = "a", verdict: Verdict = Verdict.PASS, level: str = "must", **fields: Any) -> Record:
    """One row in the thread world."""
    fields = {"chapter": "sharding", "statement": f"Rule {name} holds.", "world": "threads", **fields}
    fields.setdefault("nodeid", f"t.py::{name}[{fields['world']}]")
    return Record(requirement=f"sharding/{name}", level=level, verdict=verdict, **fields)


def run_of(*records: Record, plan: list[str] | None = None, status: int | None = 0, **changes: Any) -> Run:
    """A run of these rows; ``status=None`` leaves the footer out, ``plan`` defaults to what was written."""
    header = Header(
        schema=SCHEMA,
        implementation="torch 2.13",
        backend="gloo",
        worlds=["threads", "processes"],
        profile="core",
        level="must",
        plan=[record.nodeid for record in records] if plan is None else plan,
        suite_version="0.1.0",
        command="pytest suites -k sharding",
        started="2026-11-21T04:10:09+00:00",
    )
    footer = None if status is None else Footer("2026-11-21T04:11:09+00:00", 60.0, status)
    return replace(Run(Path("run.jsonl"), header, list(records), footer), **changes)


def file_of(run: Run, path: Path) -> Path:
    """The run as a record file."""
    lines = [run.header.as_json(), *(record.as_json() for record in run.records)]
    lines += [run.footer.as_json()] if run.footer else []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


class Parsed(HTMLParser):
    """A page taken apart: the tags with their attributes in order, the text, and what stands in scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the tag and its attributes."""
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        """Text that follows is outside of the element."""
        self._in = ""

    def handle_data(self, data: str) -> None:
        """Keep text, and apart from it what stands in scripts; styles are dropped."""
        if self._in == "script":
            self.scripts.append(data)
        elif self._in != "style":
            self.text += data


#: Of values that a run combines: those of each dimension, and for each reason some that no result tries.
DIMENSIONS = {"net": ["linear", "tied", "norms"], "mesh": ["2", "1", "3", "2x2"], "offload": ["none", "cpu"]}
EXCLUDED = [
    {"kind": "impossible", "why": "norms need two", "values": {"net": ["norms"], "mesh": ["1"]}},
    {"kind": "apart", "why": "sharding/FAIL", "values": {"net": ["norms"], "mesh": ["2"]}},
    {"kind": "not run", "why": "needs 3 ranks", "values": {"mesh": ["3"]}},
    {"kind": "not claimed", "why": "needs HSDP", "values": {"mesh": ["2x2"]}},
]


def combined(*tried: tuple[str, str, str, str], causes: Any = (), excluded: Any = ()) -> dict[str, Any]:
    """What a record has of combinations, each given as its values in the order of ``DIMENSIONS`` and its letter."""
    return {
        "dimensions": DIMENSIONS,
        "excluded": list(excluded),
        "tried": [
            [every.index(one) for every, one in zip(DIMENSIONS.values(), values, strict=False)] for values in tried
        ],
        "ends": "".join(values[-1] for values in tried),
        "causes": [{"values": values, "words": words} for values, words in causes],
    }


def full_run(**changes: Any) -> Run:
    """A run with a row of every verdict and every field filled."""
    ranks = [{"rank": 0, "fate": "raised", "error": "boom-error", "traceback": "tb-lines", "log": "log-lines"}]
    told: dict[str, Any] = {"message": "off by one", "cause": "disagreement", "case": {"case": "Case", "seed": 77}}
    told |= {"reproduce": "pytest 't.py::FAIL' --seed 5", "ranks": ranks, "source": "t.py:12"}
    told["differences"] = [
        {"where": f"rank {n}", "path": f"'w'[{n}]", "got": "3", "want": "2", "off": 1.0, "allowed": n * 0.5, "ratio": 2,
         "ulp": 2.0**-23}
        for n in range(2)
    ]  # fmt: skip
    told["tensors"] = [
        {"where": f"rank {n}, after action 3", "path": "'gradients' 'w'", "shape": [2 - n, 3], "agrees": n == 1,
         "times": None if n else 1.5}
        for n in range(2)
    ]  # fmt: skip
    told |= {
        "near": {"case": "Case", "seed": 78, "seen": 2},
        "asked": {"": {"pass": 4, "fail": 9}, "uneven rows": {"fail": 9}},
    }
    gather = {"op": "all_gather", "bytes": 64, "dtype": "float32", "reduce": None, "ranks": [0, 1]}
    told |= {"again": "FPF", "events": [[gather, {"op": "wait", "of": 0}], [{**gather, "bytes": 32}]]}
    told["curves"] = [{"name": "loss, rank 0", "baseline": [4.0, 3.0], "ranks": {"rank 0": [4.0, None]}}]
    waiver = {"reason": "firmware 2.1", "issue": "acme/chip#7", "expires": "2026-12-01"}
    tried = [("linear", "2", "none", "P"), ("linear", "1", "none", "P"), ("tied", "2", "none", "P")]
    offload = ({"net": "tied", "offload": "cpu"}, "fails when net=tied is combined with offload=cpu")
    extra: dict[Verdict, dict[str, Any]] = {
        Verdict.PASS: {
            "combinations": combined(*tried, ("norms", "2", "none", "-"), excluded=EXCLUDED),
            "ratio": 0.37,
            "worst": "gradient of w",
            "ratios": {"2 ranks · float32": 0.37, "4 ranks · float32 · mesh 2x2": 0.0, "4 ranks": 0.0},
            "ulps": {"2 ranks · float32": [3.0, 8.0]},
            "checks": 41,
            "examples": 12,
            "world_sizes": [2, 4],
        },
        Verdict.FAIL: told,
        Verdict.STALE_WAIVER: {"waiver": waiver, "message": "passes now"},
        Verdict.WAIVED: {
            "waiver": waiver,
            "ratio": 3.1,
            "ratios": {"2 ranks · float32": 3.1},
            "combinations": combined(("tied", "1", "cpu", "F"), causes=[offload]),
        },
        Verdict.NOT_CLAIMED: {"message": "no pinned memory", "features": ["CPU offload"], "tried": "pass"},
        Verdict.NOT_RUN: {"message": "needs 4 ranks"},
        Verdict.BROKEN: {"message": "no effective check"},
    }
    run = run_of(*(row(verdict.name, verdict, **extra[verdict]) for verdict in Verdict), **changes)
    header = replace(
        run.header,
        plan=[*run.header.plan, "t.py::lost"],
        claims=["fully_shard"],
        not_claimed={"CPU offload": "no pinned memory"},
        environment={"driver": "24.1"},
        seed="99",
    )
    return replace(run, header=header, damage=["run.jsonl, line 4: not JSON"], sha256="ab" * 32)
