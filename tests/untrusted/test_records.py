"""Whatever a record file holds, it is read or refused in a sentence, nothing runs, and the page has no markup of it."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.data.kinds import LEVELS
from harness.data.text import LONGEST, clipped, one_line, visible
from harness.pytest_plugin import html_columns
from harness.records.codec import as_line
from harness.records.reader import RecordFileError, Run, read_run, run_in
from harness.records.record import Record, Verdict
from harness.records.standing import standing
from harness.records.writer import writable
from harness.report import __main__ as command
from harness.report.page import render
from harness.worlds.base import Fate, NotRun, Outcome, SubjectFailure, describe
from tests.report.report_samples import Parsed, full_run, row
from tests.untrusted import harmless
from tests.untrusted.strategies import JUNK, TEXTS, as_json, changed, documents, inputs, poisoned

FULL = full_run(status=1)
DOCUMENTS: list[Any] = [FULL.header.as_json(), *(record.as_json() for record in FULL.records)]
DOCUMENTS += [{"kind": "footer", "finished": "now", "seconds": 1.5, "exit_status": 1, "problems": ["one"]}]
#: Keys whose values the schema does not leave free.
FIXED = frozenset({"kind", "schema", "verdict", "level", "again", "tried", "ends"})


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    """Everything that reading and rendering load once is loaded, and then acts are reported."""
    render([FULL, FULL])
    harmless.start()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to be written again for each input."""
    return tmp_path_factory.mktemp("untrusted") / "run.jsonl"


@st.composite
def record_files(draw: st.DrawFn) -> bytes:
    """The bytes of a record file: three lines of it changed at most, then the text, then the bytes."""
    tree = list(DOCUMENTS)
    for place in draw(st.lists(st.integers(0, len(tree) - 1), max_size=3)):
        tree[place] = draw(changed(tree[place]))
    return draw(documents([as_json(one, is_ascii=draw(st.booleans())) for one in tree]))


@st.composite
def any_runs(draw: st.DrawFn) -> Run:
    """The run of any record file that can be read; nothing of it runs."""
    harmless.start()
    run, refusal = harmless.tried(run_in, draw(record_files()), "any.jsonl", refusal=RecordFileError)
    assume(not refusal)
    return run  # type: ignore[no-any-return]


@inputs(80)
@given(data=record_files())
def test_a_record_file_is_read_or_refused_in_a_sentence(place: Path, data: bytes) -> None:
    """Any file is a run, whose page is well-formed, or a sentence that names the file; notes are sentences too."""
    place.write_bytes(data)
    run, refusal = harmless.tried(read_run, place, refusal=RecordFileError)
    if refusal:
        event("refused")
        assert place.name in refusal
        return
    event("read in part" if run.damage else "read whole")
    with harmless.harmless():
        page, words = render([run]), standing(run)
    assert all(harmless.is_sentence(note) and note.startswith(place.name) for note in run.damage)
    assert words.reason
    check_own(page)


def check_own(page: str) -> None:
    """The page is whole, its one script is ours, links stay inside but for issues, and no attribute steers."""
    page.encode()
    assert well_formed(page)
    parsed = Parsed(page)
    own = (Path(command.__file__).parent / "templates" / "page.js").read_text(encoding="utf-8")
    assert parsed.scripts == [own]
    names = {(tag, name) for tag, attrs in parsed.tags for name in attrs}
    assert names <= OWN_NAMES
    issues = [attrs["href"] or "" for _, attrs in parsed.tags if attrs.get("rel") == "noreferrer"]
    assert all(re.fullmatch(r"https://[A-Za-z0-9.-]+(/[A-Za-z0-9._~/?#=&%-]*)?", issue) for issue in issues)
    links = [(a["href"] or "", a.get("download")) for _, a in parsed.tags if "href" in a and "rel" not in a]
    assert all(link.startswith("#") for link, saved_as in links if saved_as is None)
    carried = [(link, saved_as) for link, saved_as in links if saved_as is not None]
    assert all(re.fullmatch(r"data:application/gzip;base64,[A-Za-z0-9+/]+=*", link) for link, _ in carried)
    assert all(re.fullmatch(r"\w[\w.-]*\.gz", name, re.ASCII) for _, name in carried)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)


class _Nesting(HTMLParser):
    """Follows which elements are open."""

    VOID = frozenset({"meta", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.is_good = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [] if tag in self.VOID else [tag]
        self.is_good &= len(attrs) == len(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        self.is_good &= bool(self.open) and self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        self.is_good = False

    def unknown_decl(self, data: str) -> None:
        self.is_good = False

    def handle_pi(self, data: str) -> None:
        self.is_good = False


def well_formed(page: str) -> bool:
    """Whether every element is closed where it was opened, no attribute comes twice, and nothing else is there."""
    nesting = _Nesting()
    nesting.feed(page)
    nesting.close()
    return nesting.is_good and not nesting.open


#: Its row that passes fails in the other, where many more fail in the same way.
MANY = replace(
    FULL, records=[*FULL.records[1:], *(row("PASS", Verdict.FAIL, nodeid=f"t.py::PASS[{n}]") for n in range(20))]
)
OWN_NAMES = {
    (tag, name) for runs in ([FULL], [FULL, FULL], [FULL, MANY]) for tag, a in Parsed(render(runs)).tags for name in a
}


def test_the_judge_of_pages_sees_markup_that_does_not_belong() -> None:
    """An added element, attribute, comment or script, and an element that is not closed, are each found."""
    page = render([FULL])
    assert well_formed(page)
    for bad in ("<!-- -->", "<b>", "</p>", "<![CDATA[x]]>", "<p id='a' id='b'></p>"):
        assert not well_formed(page.replace("</main>", f"{bad}</main>"))
    for bad in ("<p onclick='x'></p>", "<script>x</script>", "<a href='javascript:x'></a>", "\x1b"):
        with pytest.raises(AssertionError):
            check_own(page.replace("</main>", f"{bad}</main>"))


@inputs(40)
@given(texts=st.data())
def test_no_text_of_a_run_becomes_markup(place: Path, texts: st.DataObject) -> None:
    """With any texts in all fields that are free, the page has the elements and attributes of a harmless twin's."""
    pool = texts.draw(st.lists(TEXTS, min_size=1, max_size=4))
    turn = cycle(pool)
    lines = [poisoned(one, lambda: next(turn), FIXED) for one in DOCUMENTS]
    twin = Twin()
    pages = []
    for tree in (lines, [twin.of(line) for line in lines]):
        place.write_text("\n".join(map(json.dumps, tree)), encoding="utf-8")
        with harmless.harmless():
            run = read_run(place)
            pages.append(render([run]))
        assert run.damage == []
    check_own(pages[0])
    shapes = [[(tag, list(attrs)) for tag, attrs in Parsed(page).tags] for page in pages]
    assert shapes[0] == shapes[1]
    shown = Parsed(pages[0]).text
    assert all(visible(text) in shown for text in pool if len(text) < LONGEST)


def cycle(texts: list[str]) -> Iterator[str]:
    """One text after the other, for ever."""
    while True:
        yield from texts


class Twin:
    """Replaces what is not harmless in strings, and different strings by different ones."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, tree: Any) -> Any:
        """The harmless twin of a JSON tree."""
        if isinstance(tree, list):
            return [self.of(item) for item in tree]
        if isinstance(tree, dict):
            return {key: self.of(item) for key, item in tree.items()}
        if not isinstance(tree, str) or re.fullmatch(r"[\w #./:=+'-]*", tree, re.ASCII):
            return tree
        return self._known.setdefault(
            tree, re.sub(r"[^\w #./:=+'-]", "x", tree, flags=re.ASCII) + str(len(self._known))
        )


@inputs(25)
@given(data=record_files(), name=TEXTS)
def test_the_command_says_what_it_did_in_lines_that_steer_no_terminal(place: Path, data: bytes, name: str) -> None:
    """Whatever is in the file and its name, the command ends with 0 or 2, and prints nothing but visible lines."""
    safe = re.sub(r"[\x00/]", "", name)[:60].encode("utf-8", "surrogateescape" if name.isascii() else "replace")
    record = place.with_name(f"r{safe.decode('utf-8')}.jsonl")
    record.write_bytes(data)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command.main([str(record), "-o", str(place.with_suffix(".html"))])
    record.unlink()
    assert status in (0, 2)
    for text in (out.getvalue(), err.getvalue()):
        assert visible(text) == text
    assert len(err.getvalue().splitlines()) in ((1,) if status == 2 else (0, 1))  # what is damaged is no refusal


# Beside the page.

RECORDS = st.builds(
    row, TEXTS, st.sampled_from(Verdict), st.sampled_from(LEVELS), message=TEXTS, cause=TEXTS, world=TEXTS,
    nodeid=TEXTS, reproduce=TEXTS, worst=TEXTS, ratio=st.none() | st.floats(),
    case=st.none() | st.dictionaries(TEXTS, JUNK, max_size=3),
    differences=st.lists(st.dictionaries(st.sampled_from(["where", "path", "got", "off", "ratio"]), JUNK), max_size=3),
    ranks=st.lists(st.fixed_dictionaries({"rank": st.integers(), "error": TEXTS, "log": TEXTS}), max_size=2),
    waiver=st.none() | st.fixed_dictionaries({"reason": TEXTS, "issue": TEXTS}),
    curves=st.lists(st.dictionaries(st.sampled_from(["name", "baseline", "ranks"]), JUNK), max_size=2),
    events=st.lists(st.lists(st.dictionaries(st.sampled_from(["op", "bytes", "of", "ranks"]), JUNK), max_size=3)),
    ulps=st.dictionaries(TEXTS, st.lists(st.floats(), max_size=3), max_size=2), again=TEXTS, tried=TEXTS,
)  # fmt: skip


@inputs(60)
@given(record=RECORDS)
def test_cells_and_extras_of_pytest_html_are_text(record: Record) -> None:
    """pytest-html puts cells into its page as they are: each is one element of ours around text that is visible."""
    cells = ["result", "links"]
    report = type("Report", (), {"fsdp_record": record, "user_properties": [("backend", record.cause)]})()
    with harmless.harmless():
        html_columns.pytest_html_results_table_row(report, cells)
        extras = html_columns.extras_of(record)
    values = (record.requirement, record.level, record.world, record.cause, None, record.verdict.value)
    for cell, value in zip(cells[1:-1], values, strict=True):
        parsed = Parsed(cell)
        assert [(tag, list(attrs)) for tag, attrs in parsed.tags] == [("td", ["class"])]
        assert value is None or parsed.text == visible(value)
    assert [extra["format_type"] for extra in extras] == ["json", "text"][: 1 + bool(record.reproduce)]
    assert all(visible(extra["content"]) == extra["content"] for extra in extras[1:])
    json.dumps(extras).encode()


@inputs(60)
@given(record=RECORDS)
def test_what_is_written_of_any_texts_is_one_line_and_reads_back(place: Path, record: Record) -> None:
    """Whatever subjects print or raise, a row is one line of UTF-8 in the record file, and is read back."""
    header, (kept, told) = replace(FULL.header, plan=[record.nodeid]), writable(record)
    place.write_text(f"{as_line(header)}\n{as_line(kept)}\n", encoding="utf-8")
    with harmless.harmless():
        run = read_run(place)
    assert [note.partition(":")[2] for note in run.damage] == [
        " no footer, so the run was cut short; run it again to the end"
    ]
    assert as_line(run.records[0]) == as_line(kept)
    assert bool(told) is (kept != record)
    assert all(map(harmless.is_sentence, told))


@inputs(60)
@given(text=st.lists(TEXTS, max_size=4).map("".join), longest=st.integers(20, 600))
def test_text_for_people_can_be_seen_and_is_not_endless(text: str, longest: int) -> None:
    """What is visible stays as it is, a line is one line of its length, and what is clipped says how much is gone."""
    with harmless.harmless():
        seen, line, cut = visible(text), one_line(text, longest), clipped(text, longest)
    assert visible(seen) == seen
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", seen)
    assert len(line) <= longest + 3
    assert line == "" or harmless.is_sentence(line[: harmless.LONGEST])
    assert cut == text or str(len(text) - longest) in cut.splitlines()[0]


@inputs(60)
@given(error=TEXTS, trace=TEXTS)
def test_what_ranks_say_steers_no_terminal_as_a_failure(error: str, trace: str) -> None:
    """pytest prints the message of a failure as it is: it holds nothing but visible text."""
    outcomes = [Outcome(0, Fate.RAISED, error=error, traceback=trace), Outcome(1, Fate.INTERRUPTED, error=trace)]
    for failure in (SubjectFailure(describe(outcomes), "raised", outcomes), NotRun(error)):
        assert visible(str(failure)) == str(failure)
