"""The reference says in its own words what is wrong, but for the few that torch's users and public tests look for."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reference_models import fsdp

#: As many words in a row are taken over, not chance.
IN_A_ROW = 6
TORCH = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.contract")
#: What torch's public tests, and so perhaps other callers, match messages with; {} is a value.
KEPT = (
    "Requires DTensor to have mesh of the same type as the FSDP mesh but got {} for DTensor and {} for FSDP",
    "stream cannot be set when using native HSDP",
    "fully_shard expects a 1D or 2D DeviceMesh but got {}",
    "Please init the 2D mesh for HSDP with mesh_dim_names specified",
    "FSDP does not support uneven sharding on dim {}",
    "FSDP does not support non-contiguous parameters",
    "At least one of shard or replicate",
    "FSDP parameters should be materialized from meta device before training, "
    "but the following were still on meta device: {}",
    "Found following parameters on non-CPU device: {}",
    "FSDP expects uniform original parameter dtype but got {}",
    "FSDP requires a single root module but got {}",
    "FSDP state has already been lazily initialized for {}",
    "FSDP requires running forward through the root module first",
)


def files_of(module: str) -> list[Path]:
    """The Python files of a module or package."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin)
    return sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]


def texts_of(source: str) -> Iterator[str]:
    """The string literals of a file but for docstrings; what is put into one is {}."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | documents:
            yield node.value


def rows_of(text: str) -> set[tuple[str, ...]]:
    """All that a text says in so many words in a row, without values."""
    found: set[tuple[str, ...]] = set()
    for part in text.lower().split("{}"):
        words = re.findall(r"[\w'-]+", part)
        found |= {tuple(words[first : first + IN_A_ROW]) for first in range(len(words) - IN_A_ROW + 1)}
    return found


def said_in(module: str) -> dict[Path, set[str]]:
    """The texts of each file."""
    return {path: set(texts_of(path.read_text("utf-8"))) for path in files_of(module)}


THEIRS = {row for module in TORCH for texts in said_in(module).values() for text in texts for row in rows_of(text)}
OURS = said_in(fsdp.__name__)
ALLOWED = {row for kept in KEPT for row in rows_of(kept)}


@pytest.mark.parametrize("path", OURS, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_messages_are_in_words_of_our_own(path: Path) -> None:
    """No text shares six words in a row with one of torch's FSDP, but for those that are kept."""
    shared = {text: rows_of(text) & THEIRS - ALLOWED for text in OURS[path]}
    assert {text: rows for text, rows in shared.items() if rows} == {}


@pytest.mark.parametrize("kept", KEPT)
def test_what_is_kept_is_said(kept: str) -> None:
    """A fragment that no message has any more need not be kept."""
    said = {row for texts in OURS.values() for text in texts for row in rows_of(text)}
    assert rows_of(kept) <= said


def test_what_is_taken_over_is_seen() -> None:
    """Of two sentences, one is torch's in other type; values and docstrings do not count."""
    says = "Two, three {x} four five six (seven) EIGHT nine"
    (text,) = texts_of(f'def f(x):\n    """One two three four five six."""\n    raise ValueError(f"{says}")')
    assert rows_of(text) == {("four", "five", "six", "seven", "eight", "nine")}
