"""Imports point one way, and files stay short.

The implementation under judgement comes in through the ``Rank`` of a program alone, and the baseline shares nothing
with it: so a broken collective cannot break both sides of a comparison alike.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("fsdp_conformance", "harness", "suites", "reference_models", "tests")
MOST_LINES = {"reference_models": 250}  # 300 elsewhere
MOST_FUNCTION_LINES = 60
MOST_FILES = 15
#: The packages of the harness, the areas of the suites, the parts of the reference: each may import those before it.
ORDER = {
    "harness": [
        "data", "collective_trace", "process_group", "vendor", "simulated", "records", "requirements", "worlds",
        "trial", "run_comparison", "waivers", "pytest_plugin", "exports", "report", "reproduce", "submission",
        "site", "commands", "doctor",
    ],
    "suites": [
        "oracle",
        "kit",
        "scenarios",
        "passes",
        "parallelism",
        "composition",
        "training",
        "generated",
        "parameters",
        "setup",
        "communication",
        "gradients",
        "lifetimes",
        "state",
        "saving",
        "scripts",
        "interactions",
        "model",
        "collectives",
        "plain_scripts",
    ],
    "reference_models.fsdp": [
        "errors", "contract", "autograd", "mixed_precision", "offload", "layout", "communication", "options",
        "parameters", "modules", "setters", "fsdp_module", "apply", "checkpoint", "state_dict_type", "policy",
    ],
}  # fmt: skip


def module_name(path: Path) -> str:
    """``harness/worlds/__init__.py`` is ``harness.worlds``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))}


def below(*packages: str) -> list[str]:
    """Our modules that are in one of ``packages``."""
    return [name for name in MODULES if within(name, *packages)]


def within(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of ``packages`` or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def uses(name: str) -> set[str]:
    """The dotted names that a module imports or reaches by attributes, anywhere in it."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    return {used for node in ast.walk(tree) for used in names_in(node, name)}


def names_in(node: ast.AST, module: str) -> Iterator[str]:
    """The dotted names in one node: ``from a.b import c`` is ``a.b`` and ``a.b.c``, ``torch.a.b`` is itself."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = absolute(node, module)
        yield start
        yield from (f"{start}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        if text.startswith("torch.") and re.fullmatch(r"[\w.]+", text):
            yield text


def absolute(node: ast.ImportFrom, module: str) -> str:
    """The module that ``from … import`` names, without leading dots."""
    if not node.level:
        return node.module or ""
    is_package = MODULES[module].name == "__init__.py"
    package = module.split(".")[: len(module.split(".")) - node.level + is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def reached(name: str) -> set[str]:
    """Our modules that are loaded with ``name``: what it imports, and so on, with the packages they are in."""
    found, waiting = set(), [name]
    while waiting:
        one = waiting.pop()
        if one in MODULES and one not in found:
            found.add(one)
            waiting += [*uses(one), one.rpartition(".")[0]]
    return found


def users(forbidden: tuple[str, ...], where: list[str]) -> list[str]:
    """Who in ``where`` uses what is forbidden there: ``module uses name``."""
    return [f"{name} uses {used}" for name in where for used in sorted(uses(name)) if within(used, *forbidden)]


def test_the_walk_sees_imports_and_attributes() -> None:
    """The walk finds a private import that is there, so its silence elsewhere means something."""
    used = uses("harness.worlds.threads.role")
    assert "torch.testing._internal.distributed.multi_threaded_pg.ThreadLocalWorld" in used
    assert any(within(used, "torch.accelerator") for used in uses("harness.pytest_plugin.environment"))
    assert {"harness.data.case", "suites.kit", "reference_models.nets.mlp"} <= reached("suites.kit.precision")


@pytest.mark.parametrize("package", ["reference_models.fsdp", "reference_models.nets"])
def test_the_reference_imports_torch_and_itself_only(package: str) -> None:
    """The reference implementation and the nets can be read, and used, without anything else of the project."""
    allowed = (*sys.stdlib_module_names, "torch", "reference_models.fsdp", "reference_models.nets")
    strangers = [f"{name} uses {used}" for name in below(package) for used in uses(name) if not within(used, *allowed)]
    assert strangers == []


def test_one_file_of_the_reference_knows_the_harness() -> None:
    """The reference comes in by the vendors' door: ``reference_models.subject`` alone imports the harness."""
    others = [name for name in below("reference_models") if name != "reference_models.subject"]
    assert users(("harness", "suites"), others) == []


def test_the_harness_knows_neither_suites_nor_reference() -> None:
    """The harness judges any suite and any subject; it imports none."""
    assert users(("suites", "reference_models", "tests"), below("harness")) == []


def test_suites_reach_an_implementation_through_the_rank_only() -> None:
    """No requirement names torch's own FSDP or ours; what is judged is what the rank hands out."""
    forbidden = ("torch.distributed.fsdp", "torch.distributed._composable", "reference_models.fsdp")
    assert users((*forbidden, "reference_models.subject", "tests"), below("suites")) == []


@pytest.mark.parametrize(
    "oracle",
    [
        "suites.oracle.expected", "suites.kit.precision", "suites.passes.passes", "suites.kit.tolerance",
        "suites.saving.chains", "suites.saving.optimizer_states", "suites.collectives.collective_oracle",
        "suites.generated.net_cases", "suites.scripts.unsharded", "suites.scenarios.scenario", "suites.model.sizes",
    ],
)  # fmt: skip
def test_the_oracle_loads_no_collectives(oracle: str) -> None:
    """What expected values are computed with uses no ``torch.distributed``, directly or through other files of ours."""
    assert users(("torch.distributed",), sorted(reached(oracle))) == []


def test_private_test_helpers_of_torch_are_used_in_two_files_only() -> None:
    """``torch.testing._internal`` is torch's own business; where we borrow from it is known."""
    borrowing = {name for name in MODULES if any(within(used, "torch.testing._internal") for used in uses(name))}
    assert borrowing <= {"harness.worlds.threads.role", "harness.worlds.preload"}


@pytest.mark.parametrize("name", below("harness", "suites", "reference_models"))
def test_nothing_from_disk_is_unpickled(name: str) -> None:
    """``torch.load`` is told ``weights_only=True`` wherever it is called, and pickles are read from no file."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func) == "torch.load"]
    assert all("weights_only=True" in ast.unparse(call) for call in loads)
    assert not [call for call in calls if ast.unparse(call.func) == "pickle.load"]


@pytest.mark.parametrize("top", ORDER)
def test_imports_follow_the_ordered_list_of_packages(top: str) -> None:
    """A package imports only those before it in the list, also in functions and for type checkers."""
    ranks = {f"{top}.{package}": place for place, package in enumerate(ORDER[top])}
    assert {part_of(name, top) for name in below(top) if name.count(".") > 1} - {top} <= set(ranks)
    upward = [
        f"{name} uses {used}"
        for name in below(top)
        for used in uses(name)
        if ranks.get(part_of(used, top), -1) > ranks.get(part_of(name, top), len(ranks))
    ]
    assert upward == []


def part_of(name: str, top: str) -> str:
    """``harness.worlds`` of ``harness.worlds.threads.store``, in ``harness``."""
    return ".".join(name.split(".")[: top.count(".") + 2])


def test_no_module_imports_itself_through_others() -> None:
    """There is no cycle of imports, also in functions and for type checkers."""
    graph = {name: uses(name) & set(MODULES) - {name} for name in MODULES}
    assert cycle(graph) == []


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules that import each other in a ring, or below one; none where the graph has an order."""
    left = dict(graph)
    while free := [name for name, used in left.items() if not used & set(left)]:
        for name in free:
            del left[name]
    return sorted(left)


def test_a_cycle_is_seen() -> None:
    """Of three modules, the two that import each other are found."""
    assert cycle({"a": {"b"}, "b": {"a"}, "c": set()}) == ["a", "b"]


PACKAGES = sorted({path.parent for path in MODULES.values()})
DOCUMENTS = [ROOT / "docs", *sorted(path for path in (ROOT / "docs").rglob("*") if path.is_dir())]


def relative(folder: Path) -> str:
    """A folder's path in the project."""
    return folder.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("folder", [*PACKAGES, *DOCUMENTS], ids=relative)
def test_a_folder_holds_at_most_fifteen_files(folder: Path) -> None:
    """A folder can be taken in at a glance."""
    assert len([path for path in folder.iterdir() if path.is_file()]) <= MOST_FILES


@pytest.mark.parametrize("folder", PACKAGES, ids=relative)
def test_a_package_says_what_belongs_in_it(folder: Path) -> None:
    """Its docstring begins with a sentence."""
    statement = " ".join((ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or "").split())
    assert re.match(r"(``)?[\w].+?\.($|\s)", statement), f"no sentence: {statement!r}"


@pytest.mark.parametrize("name", list(MODULES))
def test_files_and_functions_are_short(name: str) -> None:
    """A file can be read in one sitting, and a function at one glance."""
    text = MODULES[name].read_text(encoding="utf-8")
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    long = [f.name for f in functions if (f.end_lineno or 0) - f.lineno >= MOST_FUNCTION_LINES]
    assert len(text.splitlines()) <= MOST_LINES.get(name.partition(".")[0], 300)
    assert long == []
