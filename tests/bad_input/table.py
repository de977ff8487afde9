"""The table: what is given, and the sentence that must come of it; ``…`` stands for any words.

Files named here are those of ``files.py``; all but ``none.*``, ``no/`` and ``absent`` are there.
"""

from __future__ import annotations

import re

BUNDLE = "bundle torch.jsonl --waivers mine.toml -o s.zip"
#: Of ``fsdp-conformance``: exit status 2.
COMMANDS = {
    "runn": "there is no command 'runn'; did you mean 'run'?",
    "doctr --backend gloo": "there is no command 'doctr'; did you mean 'doctor'?",
    "xyzzy": "there is no command 'xyzzy'; expected one of run, watch, report, doctor, bundle, verify, site, compare",
    "--backend gloo": "there is no command '--backend'; expected one of run",
    "report": "the following arguments are required: run.jsonl; `fsdp-conformance report --help` shows",
    "report run.jsonl --outptu page.html": "unrecognized arguments: --outptu",
    "watch": "required: RUN.jsonl",
    "watch run.jsonl --every soon": "argument --every: expected a number of at least 0, got 'soon'",
    "watch run.jsonl --every nan": "argument --every: expected a number of at least 0, got 'nan'",
    "watch notes.txt": "line 1: not a record file",
    "watch newer.jsonl": "value 9, expected 1",
    "watch .": ".: is a directory; name the record file",
    "ctrf none.jsonl": "none.jsonl: cannot be read",
    "ctrf run.jsonl -o run.jsonl": "run.jsonl: is one of the record files",
    "report none.jsonl -o page.html": "none.jsonl: cannot be read (No such file",
    "report . -o page.html": ".: is a directory; name the record file",
    "report empty.jsonl -o page.html": "empty.jsonl: is empty; was the run stopped before it began?",
    "report twice.jsonl -o page.html": "a second header, so the file holds two runs; cut it in two",
    "report notes.txt -o page.html": "notes.txt, line 1: not a record file",
    "report run.jsonl -o run.jsonl": "run.jsonl: is one of the record files",
    "report run.jsonl -o page.html --json run.jsonl": "run.jsonl: is one of the record files",
    "report run.jsonl -o page.html --json no/s.json": "s.json: cannot be written",
    "report run.jsonl -o .": ".: is a directory; name the page.html itself",
    "report run.jsonl -o no/page.html": "no/page.html: cannot be written (No such file",
    "report run.jsonl -o notes.txt/page.html": "page.html: cannot be written (Not a dir",
    "compare none.jsonl run.jsonl": "none.jsonl: cannot be read",
    "compare run.jsonl": "required: B.jsonl",
    "compare run.jsonl notes.txt": "notes.txt, line 1: not a record file",
    "compare run.jsonl run.jsonl --drift 0.5": "argument --drift: expected a number of at least 1, got '0.5'",
    "compare run.jsonl run.jsonl --json run.jsonl": "run.jsonl: is one of the record files",
    "compare run.jsonl run.jsonl --json no/c.json": "c.json: cannot be written",
    "waivers": "required: check|suggest",
    "waivers chekc w.toml": "invalid choice: 'chekc' (choose from",
    "waivers check none.toml": "waiver file none.toml: cannot be read … name another with --waivers",
    "waivers check bytes.toml": "bytes.toml",
    "waivers check bad.toml": "missing required field `issue`",
    "waivers check w.toml --records w.toml": "w.toml, line 1: not a record file",
    "waivers check w.toml --suites none": "--suites none: expected the folder of a suite",
    "waivers check w.toml --on tomorrow": "argument --on: expected a date like 2027-03-01, got 'tomorrow'",
    "waivers suggest none.jsonl": "none.jsonl: cannot be read",
    "waivers suggest run.jsonl --id sharding/b": "run.jsonl: no result of 'sharding/b' fails there",
    "reproduce run.jsonl": "required: ID",
    "reproduce run.jsonl sharding/b": "run.jsonl … sharding/b",
    "reproduce run.jsonl sharding/a --script --torchrun": "argument --torchrun: not allowed with argument --script",
    "reproduce notes.txt parity/exact": "not a record file",
    "reproduce newer.jsonl parity/exact": "value 9, expected 1; use the version of the suite that wrote it",
    "reproduce empty.jsonl parity/exact": "is empty",
    "site": "required: RUN",
    "site none.jsonl": "none.jsonl: cannot be read",
    "site notes.txt": "notes.txt, line 1: not a record file",
    "site run.jsonl -o notes.txt": "notes.txt: is a file; choose a folder with -o",
    "site run.jsonl -o .": ".: holds files that are no site",
    "verify none.zip": "cannot be read (No such file",
    "verify notes.txt": "notes.txt",
    "verify .": "is not a regular file",
    "verify a\x1b": "a␛: cannot be read",
    f"{BUNDLE} --waivers empty.jsonl": "empty.jsonl: no run read this waiver file",
    f"{BUNDLE} --waivers none.toml": "none.toml: cannot be read (No such file or directory)",
    f"{BUNDLE} none.jsonl": "none.jsonl: cannot be read (No such file or directory)",
    f"{BUNDLE} mine.toml": "not a record file",
    f"{BUNDLE} -o .": ".: is a directory; name the archive itself",
    f"{BUNDLE} -o torch.jsonl": "torch.jsonl: is one of the files to bundle",
    f"{BUNDLE} -o no/s.zip": "no/s.zip: cannot be written (No such file or directory)",
    BUNDLE + " torch.jsonl" * 62: "has 66 members, and a submission at most 64",
    "bundle torch.jsonl -o s.zip": "the waiver file 'waivers.toml' with sha256",
    "doctor --backend glo": "unknown backend 'glo': expected one of auto, gloo",
    "doctor --backend no_such_vendor.conformance:backend": "no module 'no_such_vendor'; is it installed here",
    "doctor --backend tests.doctor.broken.values:absent": "module 'tests.doctor.broken.values' has no 'absent'",
    "doctor --implementation torhc --backend gloo": "unknown implementation 'torhc'",
    "doctor --patience 0": "argument --patience: expected 1 to 3600 seconds, got 0",
    "doctor --patience soon": "argument --patience: invalid float value: 'soon'",
    "run --record x.jsonl": "argument --record: expected the folder of record files, as -o FOLDER, got 'x.jsonl'",
    "run --implementation a:b --implementation a-b": "a:b, a-b would write the same files; run them one by one",
    "run --backend nowhere": "unknown backend 'nowhere': expected one of auto, gloo",
    "run --fallback nowhere": "unknown backend 'nowhere': expected one of auto, gloo",
    "run --model net": "model 'net': expected module:function, such as my_package.conformance:net",
    "run -o": "argument -o/--output: expected one argument",
}

#: Entries of a waiver file, made from a right one by a replacement: exit status 2 of ``waivers check``.
WAIVERS = {
    ("2027-03-01", "soon"): "at line 6, column 11",
    ("[[waiver]]", "[[waver]]"): "unknown field `waver`; expected … tables of subject, issue, reason, expires",
    ("[[waiver]]", "[waiver]"): "Expected `array`, got `object`",
    ("issue", "isue"): "unknown field `isue` - at `$.waiver[0]`",
    ('subject = "torch"\n', ""): "missing required field `subject`",
    ('"pinning happens on the wrong device"', '""'): "length >= 1 - at … reason`",
    ('requirement = "offload/pinned"\n', ""): "expected either requirement or nodeid",
    ("[[waiver]]", '[[waiver]]\nnodeid = "x"'): "expected either requirement or nodeid",
    ("2027-03-01", '"2027-03-01"'): "Expected `date`, got `str`",
    ("2027-03-01", "2027-03-01T10:00:00"): "Expected `date`, got `datetime`",
    ("[[waiver]]", '[[waiver]]\nversions = "2.13"'): "expected versions like '>=2.11,<2.14' … '2.13'",
}

_SAMPLES = "tests.plugin.samples"
#: Of ``pytest``: exit status 4, before any test.
PYTEST: list[tuple[list[str], str]] = [
    (["--implementation", "nobody"], "unknown implementation 'nobody': expected one of reference, torch, or"),
    (["--implementation", "not_there:x"], "implementation 'not_there:x': cannot import 'not_there' … is it inst"),
    (["--implementation", "raises_on_import:x"], "'raises_on_import' failed with RuntimeError: no driver"),
    (["--implementation", f"{_SAMPLES}:x"], f"module '{_SAMPLES}' has no 'x'; define it"),
    (["--implementation", f"{_SAMPLES}:empty_claim"], "but gives no 'Implementation.checkp"),
    (["--implementation", f"{_SAMPLES}:both_ways"], "both claims and disclaims fully_shard: decide"),
    (["--implementation", f"{_SAMPLES}:not_an_implementation"], "expected a fsdp_conformance.Impl"),
    (["--backend", "nothing"], "unknown backend 'nothing': expected one of auto, gloo, nccl, simulated, or"),
    (["--backend", "unfit:no_ranks"], "backend 'none': ranks is 0, so no rank can run; expected at least 1, such as"),
    (["--backend", "unfit:fewer"], "backend 'fewer': ranks and thread_ranks must not be negative"),
    (["--backend", "unfit:many"], "backend 'unfit:many': ranks must be int, got 'eight'"),
    (["--backend", "unfit:forked"], "start_method must be 'forkserver' or 'spawn', got 'fork'"),
    (["--fallback", "nowhere"], "unknown backend 'nowhere': expected one of auto, gloo, nccl, simulated, or"),
    (["--model", "net"], "--model: none of these tests judges a model; run suites/model/own_model.py"),
    (["--world", "moon"], "--world 'moon': expected one of threads, processes, attached, both"),
    (["--world", "attached"], "--world attached: "),
    (["--unclaimed", "maybe"], "--unclaimed 'maybe': expected one of leave, try"),
    (["--level", "maybe"], "--level 'maybe': expected one of must, should, may, all"),
    (["--waivers", "nowhere.toml"], "waiver file nowhere.toml: cannot be read … ; name another with --waivers"),
    (["--waivers", "test_few.py"], "test_few.py"),
    (["--record", "test_few.py/x"], "--record test_few.py/x: cannot be written … ; name another file"),
    (["--record", "."], "--record .: cannot be written (Is a directory); name another file"),
    (["--record", "/proc/none/run.jsonl"], "--record /proc/none/run.jsonl: cannot be written"),
    (["--only", "few/muts"], "--only 'few/muts': expected a chapter or a requirement among … is it few/must"),
    (["--only", "few,"], "--only '': expected a chapter or a requirement among these tests"),
    (["--failed", "nowhere.jsonl"], "nowhere.jsonl: cannot be read (No such file"),
    (["--failed", "test_few.py"], "test_few.py, line 1: not a record file"),
    (["--hypothesis-profile", "swift"], "--hypothesis-profile 'swift': expected one of quick, full, soak, "),
    (["--case", ""], "--case: expected a case as JSON, got '' … ; take case and test from"),
    (["--case", "{"], "--case: expected a case as JSON, got '{' (Expecting property name"),
    (["--case", "[" * 10**5], "--case: expected a case as JSON, got '[[[ … ; take case and test"),
    (["--case", '{"case": %s}' % ("[" * 99 + "]" * 99)], "--case: expected a case, got JSON that is nested more"),
    (["--case", "[]"], '--case: expected a JSON object with a "case" key naming the case class, got []'),
    (["--case", "7"], '--case: expected a JSON object with a "case" key naming the case class, got 7'),
    (["--case", '{"case": "Nothing"}'], "--case: unknown case class 'Nothing'; known here: … Digit"),
    (["--case", '{"case": "Digit"}'], "--case: cannot build Digit from … digit"),
    (["--case", '{"case": "Digit", "digit": "one"}'], "--case: \"digit\" of Digit must be int, got 'one'"),
    (["-k", "draws or holds", "--case", '{"case": "Digit", "digit": 1}'], "test_holds … draws no cases; run it"),
    (["-k", "draws", "--case", '{"case": "Letter"}'], "test_draws … : expected a case of Digit, got one of Letter"),
]  # fmt: skip

_MEETING = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
#: Of ``python -m harness.attached -- pytest`` with the variables of a launcher: exit status 4.
LAUNCHERS: list[tuple[dict[str, str], str]] = [
    ({}, "no launcher has started this process"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT are not set"),
    (
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
        "are not set … before srun, `export MASTER_ADDR=… MASTER_PORT=…`",
    ),
    ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}, "are not set … `mpiexec -genv MASTER_ADDR …"),
    ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "9"}, "MASTER_ADDR is not set"),
    (
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        "MASTER_PORT is not set … `mpiexec -x MASTER_ADDR=… -x MASTER_PORT=…`",
    ),
    ({"RANK": "2", "WORLD_SIZE": "2", **_MEETING}, "expected a rank from 0 to WORLD_SIZE - 1"),
    ({"RANK": "-1", "WORLD_SIZE": "2", **_MEETING}, "RANK='-1': expected a number"),
]


def has(said: str, words: str) -> bool:
    """Whether a line has the words, with anything between where ``…`` stands."""
    return re.search(".*".join(re.escape(part.strip()) for part in words.split(" … ")), said) is not None
