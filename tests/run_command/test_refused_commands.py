"""What a command cannot do is one line on stderr that names the file, and status 2; nothing is printed or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli
from harness.records.record import Verdict
from tests.report.report_samples import file_of, row, run_of
from tests.submission.submission_samples import WAIVER_FILE, Forger
from tests.untrusted import harmless
from tests.waivers.stanzas import stanza

BUNDLE = "bundle torch.jsonl --waivers mine.toml -o s.zip"
REFUSED = {
    "watch none.jsonl": "No such file",
    "watch notes.txt": "line 1: not a record file",
    "watch newer.jsonl": "value 9, expected 1",
    "ctrf none.jsonl": "none.jsonl: cannot be read",
    "ctrf run.jsonl -o run.jsonl": "run.jsonl: is one of the record files",
    "report none.jsonl -o page.html": "none.jsonl: cannot be read (No such file",
    "report notes.txt -o page.html": "notes.txt, line 1: not a record file",
    "report run.jsonl -o run.jsonl": "run.jsonl: is one of the record files",
    "report run.jsonl -o .": ".: is a directory; name the page.html itself",
    "report run.jsonl -o no/page.html": "no/page.html: cannot be written (No such file",
    "report run.jsonl -o notes.txt/page.html": "page.html: cannot be written (Not a dir",
    "compare none.jsonl run.jsonl": "none.jsonl: cannot be read",
    "compare run.jsonl notes.txt": "notes.txt, line 1: not a record file",
    "compare run.jsonl run.jsonl --json run.jsonl": "run.jsonl: is one of the record files",
    "compare run.jsonl run.jsonl --json no/c.json": "c.json: cannot be written",
    "waivers check none.toml": "waiver file none.toml: cannot be read",
    "waivers check bad.toml": "missing required field `issue`",
    "waivers check w.toml --records w.toml": "w.toml, line 1: not a record file",
    "waivers check w.toml --suites none": "--suites none: expected the folder of a suite",
    "waivers suggest none.jsonl": "none.jsonl: cannot be read",
    "waivers suggest run.jsonl --id sharding/b": "run.jsonl: no result of 'sharding/b' fails there",
    "reproduce notes.txt parity/exact": "not a record file",
    "reproduce newer.jsonl parity/exact": "value 9, expected 1; use the version of the suite that wrote it",
    "reproduce empty.jsonl parity/exact": "is empty",
    "verify none.zip": "cannot be read (No such file",
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
}


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: ascii(line)[:60])
def test_what_a_command_cannot_do_is_one_sentence(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, one line that steers no terminal, no output, and every file as it was."""
    monkeypatch.chdir(tmp_path)
    file_of(run_of(row("a", Verdict.FAIL)), Path("run.jsonl"))
    files = {
        "notes.txt": b"hello\n",
        "newer.jsonl": b'{"kind": "header", "schema": 9}\n',
        "empty.jsonl": b"",
        "w.toml": stanza("sharding/a", "torch").encode(),
        "bad.toml": stanza("sharding/a", "torch").replace("issue", "# issue").encode(),
        "torch.jsonl": Forger().file(),
        "mine.toml": WAIVER_FILE,
    }
    for name, data in files.items():
        Path(name).write_bytes(data)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.main(line.split(" ")) == 2
    out, said = capsys.readouterr()
    assert REFUSED[line] in said
    assert harmless.is_sentence(said.removesuffix("\n"))
    assert out == ""
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
