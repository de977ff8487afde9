"""Random mutants: what is changed, which changes a seed gives, how one is tried, and how a measurement goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from tests import ROOT
from tests.random_mutants.operators import Edit, is_valid, sites
from tests.random_mutants.report import report
from tests.random_mutants.run import each_tried, main, read
from tests.random_mutants.sampling import RandomMutant, sampled, waits
from tests.random_mutants.trying import Try, _judged, tried

REFERENCE = ["reference_models/fsdp"]
COLLECTIVES = ROOT / "reference_models/fsdp/communication/collectives.py"
PARITY = ("suites/training/test_training_parity.py", "-k", "integers")
CHANGES = [
    ("compare", "a < b", {"a <= b", "a >= b"}),
    ("compare", "a is not None", {"a is None"}),
    ("compare", "a not in b", {"a in b"}),
    ("arithmetic", "a + b", {"a - b"}),
    ("arithmetic", "-a", {"a"}),
    ("arithmetic", "a //= b", {"a *= b", "a %= b"}),
    ("boolean", "a and b and c", {"a or b and c", "a and b or c"}),
    ("boolean", "not(a)", {"(a)"}),
    ("constant", "f(True)", {"f(False)"}),
    ("constant", "lambda a=None: 4", {"lambda a=True: 4", "lambda a=None: 5", "lambda a=None: 3"}),
    ("branch", "a if b or c else d", {f"a if {test} else d" for test in ("True", "False", "not (b or c)")}),
    ("branch", "[a for a in b if a]", {f"[a for a in b if {test}]" for test in ("True", "False", "not (a)")}),
    ("branch", "while a < b:\n pass", {"while False:\n pass"}),
    ("argument", "f(a, b, c=d)", {"f(b, a, c=d)", "f(a, c=d)", "f(a, b)"}),
    ("argument", "f(*a, b=c)", {"f(*a)"}),
    ("decorator", "@a\ndef f(): 'é'", {"\ndef f(): 'é'"}),
    ("statement", "def f(a):\n b.c = 'é'\n a = 1\n d = 2", {"pass\n a = 1\n d = 2", "b.c = 'é'\n pass\n d = 2"}),
    ("statement", "def f():\n e(\n  1)\n return 2", {"pass\n return 2"}),
]
EXEMPT = '''
"""A docstring."""
a: Optional[1 + 2] = "text"
if TYPE_CHECKING:
    import b
def f(c: Literal[1], *d: 2) -> Literal[True]:
    """Another."""
    assert c < 1, f"{c + 1}"
    logger.debug("%s", c + 1)
    raise ValueError(f"expected {c + 1}", 1)
'''


@pytest.mark.parametrize(("operator", "source", "expected"), CHANGES)
def test_an_operator_changes_one_thing(operator: str, source: str, expected: set[str]) -> None:
    """Each change of a place replaces an operator, a constant, a condition, an argument, a decorator or a statement."""
    edits = [edit for site in sites(source) for edit in site if edit.operator == operator]
    changed = {edit.applied(source).removeprefix("def f(a):\n ").removeprefix("def f():\n ") for edit in edits}
    assert changed == expected
    assert all(is_valid(edit.applied(source)) for edit in edits)


def test_text_annotations_and_refusals_are_left_alone() -> None:
    """What a change could not make wrong, or only in its words, is no place for a mutant."""
    assert sites(EXEMPT) == []


def test_a_seed_gives_the_same_mutants() -> None:
    """Mutants follow from the seed; more of them begin with the same ones; an id names one, and its diff is short."""
    mutants = sampled(7, 40, REFERENCE)
    assert sampled(7, 15, REFERENCE) == mutants[:15]
    assert sampled(8, 15, REFERENCE) != mutants[:15]
    assert len({mutant.id for mutant in mutants}) == 40
    for mutant in mutants:
        assert mutant.edit is not None
        assert mutant.id.startswith(f"{mutant.path.relative_to(ROOT)}:{mutant.edit.line}:{mutant.edit.operator}:")
        assert mutant.source != mutant.path.read_text(encoding="utf-8")
        assert mutant.diff.count("\n+") <= 2


def test_every_statement_that_waits_is_left_out_once() -> None:
    """Of torch and of the reference, each mutant drops one statement, and its line has a call that waits."""
    found = waits(["torch", "reference_models/fsdp"])
    assert len({mutant.id for mutant in found}) == len(found)
    assert {mutant.implementation for mutant in found} == {"torch", "reference"}
    for mutant in found:
        lines = mutant.diff.splitlines()
        [instead] = [line for line in lines if line.startswith("+")]
        assert instead.strip("+ ").startswith("pass")
        assert "(" in lines[0]


def test_a_wrong_path_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message says which paths there are."""
    with pytest.raises(SystemExit):
        main(["--seed", "7", "--paths", "no/such"])
    assert "expected a Python file or a folder of" in capsys.readouterr().err


def changed(path: Path, module: str, old: str, new: str) -> RandomMutant:
    """A mutant in which the first ``old`` of a file is ``new``."""
    start = path.read_bytes().index(old.encode())
    folder = "torch/" if module.startswith("torch.") else ""
    return RandomMutant(f"{folder}{path.name}:1:made:1", module, path, Edit("made", 1, start, start + len(old), new))


def end(old: str, new: str, limit: float = 600.0) -> Try:
    """What comes of a mutant of the reference's collectives."""
    mutant = changed(COLLECTIVES, "reference_models.fsdp.communication.collectives", old, new)
    return asyncio.run(tried(mutant, "threads", PARITY, limit))


def test_wrong_numbers_are_killed_and_an_equivalent_mutant_survives() -> None:
    """A sum for an average is killed by the requirement that shows it; what changes nothing is not."""
    before = COLLECTIVES.read_bytes()
    result = end("dist.ReduceOp.AVG", "dist.ReduceOp.SUM")
    assert (result.end, result.by, result.position, result.is_killed) == ("killed", "parity/exact", 0, True)
    assert "expected" in result.message
    assert "+        return Division(1.0, 1.0, dist.ReduceOp.SUM)" in result.diff
    assert end("_advanced: bool = False", "_advanced: bool = 0")[2:5] == ("survived", "", "")
    assert COLLECTIVES.read_bytes() == before


def test_crashes_and_hangs_are_kills_of_their_own() -> None:
    """A name that is not there is a crash, in a rank or when it is imported; an import that never ends is a hang."""
    in_rank, at_import = end("rows.view(-1)", "row.view(-1)"), end("Any, NamedTuple", "Any, NamedTupel")
    assert (in_rank.end, in_rank.by) == ("crash", "parity/exact")
    assert (at_import.end, at_import.by) == ("crash", "")
    assert "NamedTupel" in at_import.message
    assert end("import torch\n", "while 1: pass\n", limit=1.0).end == "hang"


@pytest.mark.parametrize("output", ["ImportError: gone\n", "ImportError: gone\nno tests ran in 1.86s\n"])
def test_the_message_of_a_crash_is_its_error(tmp_path: Path, output: str) -> None:
    """A run that ends before its first result is told by its error, whether or not pytest's summary comes after it."""
    assert _judged(4, tmp_path / "record.jsonl", output) == ("crash", "", "ImportError: gone", 0)


def test_a_mutant_of_torch_is_what_rank_processes_import() -> None:
    """The installed torch is not written to, and each rank has the mutated module in its place."""
    path = Path(_fsdp_collectives.__file__)
    mutant = changed(path, _fsdp_collectives.__name__, "return None, None, ReduceOp.AVG", "return 3, 5, ReduceOp.AVG")
    result = asyncio.run(tried(mutant, "processes", PARITY))
    assert (result.end, result.by) == ("killed", "parity/exact")


async def survives(mutant: RandomMutant, world: str) -> Try:
    """A try without a run."""
    return Try(mutant.id, world, "survived", "", "", 3, 0.1, mutant.diff)


async def must_not(mutant: RandomMutant, world: str) -> Try:
    """A try that must not come."""
    raise AssertionError(f"{mutant.id} was tried again in {world}")


def test_a_measurement_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    """Results come by line; those that are there are not tried again, and a line that was cut short is."""
    file, mutants = tmp_path / "reports" / "results.jsonl", sampled(7, 3, REFERENCE)
    killed = Try(mutants[0].id, "threads", "crash", "a/b", "rank 0: | NameError", 4, 1.0, mutants[0].diff)
    file.parent.mkdir()
    file.write_text(json.dumps(killed) + "\n" + '["cut', encoding="utf-8")
    asyncio.run(each_tried(mutants, file, read(file), trying=survives))
    results = read(file)
    tried_in = [(one.id, one.world) for one in results.values()]
    worlds = ("threads", "processes")
    rest = [(id, world) for world in worlds for id in ("unmutated", mutants[1].id, mutants[2].id)]
    assert tried_in == [(killed.id, "threads"), *rest]
    asyncio.run(each_tried(mutants, file, results, trying=must_not))
    page = "\n".join(report(mutants, results))
    assert "| all | 3 | 1 | 1 | 2 | 0 | 33% |" in page
    assert f"| `{killed.id}` | crash: a/b (threads) | 4 | `rank 0: \\| NameError` |" in page
    assert f"`{mutants[2].id}`, survived in processes" in page
    assert mutants[2].diff in page


def test_a_subject_that_fails_unmutated_is_reported_first() -> None:
    """Else its own failures would count as kills."""
    mutants = sampled(7, 1, REFERENCE)
    own = {("unmutated", "", "threads"): Try("unmutated", "threads", "killed", "a/b", "wrong", 4, 1.0, "")}
    assert "The unmutated subject ended as killed by `a/b`" in next(report(mutants, own))
