"""What vendors hand in is a whole value of its type, or a sentence says what to mend; it is imported, never called."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from harness.data.type_checks import misfit
from harness.vendor import Backend, Feature, Implementation
from harness.vendor.load import load_backend, load_implementation
from tests.untrusted import harmless
from tests.untrusted.strategies import JUNK, TEXTS, inputs


@pytest.fixture(scope="module", autouse=True)
def watched() -> None:
    """From here on, acts are reported."""
    harmless.start()


VENDOR = "untrusted_vendor"
VALUES = st.one_of(JUNK, st.sampled_from([object(), print, int, {1}, frozenset({"x"}), b"x", ..., {"HSDP": 1}, 2.5]))
GOOD = {
    "name": "mine", "claims": frozenset({Feature.FULLY_SHARD}), "fully_shard": print, "not_claimed": {}, "ranks": 2,
    "lacks": {}, "imports": (), "environment": {}, "start_method": "spawn",
}  # fmt: skip


@st.composite
def vendors_values(draw: st.DrawFn) -> Any:
    """An implementation or a backend with up to three fields of any kind, or anything else."""
    kind = draw(st.sampled_from([Implementation, Backend, None]))
    if kind is None:
        return draw(VALUES)
    names = [field.name for field in fields(kind)]
    wrong = draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3))
    return kind(**{**{name: value for name, value in GOOD.items() if name in names}, **wrong})


@pytest.fixture(scope="module")
def vendor() -> Iterator[types.ModuleType]:
    """A vendor's module."""
    module = sys.modules[VENDOR] = types.ModuleType(VENDOR)
    yield module
    del sys.modules[VENDOR]


@inputs(100)
@given(value=vendors_values())
def test_a_vendors_value_is_whole_or_refused_in_a_sentence(vendor: types.ModuleType, value: Any) -> None:
    """What loads is of the type asked for with fields of their types; else one sentence says what to mend."""
    vendor.value = value  # type: ignore[attr-defined]
    for load, kind in ((load_implementation, Implementation), (load_backend, Backend)):
        loaded, refusal = harmless.tried(load, f"{VENDOR}:value")
        event("refused" if refusal else "loaded")
        assert refusal or (type(loaded) is kind and misfit(loaded) == "")


PARTS = (
    st.sampled_from(["", ".", "..", VENDOR, f"{VENDOR}.sub", f".{VENDOR}", "no.such.thing", "os", "a b", "x" * 999])
    | TEXTS
)
ATTRIBUTES = st.sampled_from(["value", "value.name", "__class__", "__dict__", "system", "a:b", "", "🙂"]) | TEXTS


@inputs(100)
@given(module=PARTS, colon=st.sampled_from([":", "", "::", " : "]), attribute=ATTRIBUTES)
def test_what_names_no_value_is_refused_in_a_sentence(
    vendor: types.ModuleType, module: str, colon: str, attribute: str
) -> None:
    """A spec that leads to no implementation is refused; what it leads to is not called."""
    vendor.value = print  # type: ignore[attr-defined]
    for load in (load_implementation, load_backend):
        with pytest.raises(ValueError) as refused:
            load(f"{module}{colon}{attribute}")
        assert harmless.is_sentence(str(refused.value))
    assert not harmless.CANARY.exists()


BAD_MODULES = {
    "ends the program": "raise SystemExit('\\x1b[2J')", "raises": "raise KeyError('a\\nb')", "divides": "1 / 0",
    "is no Python": "def", "is no text": "\x00", "recurses": "def f(): f()\nf()",
    "has no attribute": "import os; os.nothing",
    "imports what is not there": "import no_such_module", "lies": "def __getattr__(name): raise OSError(name)",
    "raises no words": "raise Exception", "raises much": "raise ValueError('x' * 10**6)", "is empty": "",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD_MODULES.values(), ids=BAD_MODULES.keys())
def test_a_module_that_cannot_be_imported_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Whatever a vendor's module does when it is imported ends in one sentence that names it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bad_vendor_module", raising=False)
    (tmp_path / "bad_vendor_module.py").write_text(text)
    with pytest.raises(ValueError, match="bad_vendor_module") as refused:
        load_backend("bad_vendor_module:value")
    assert harmless.is_sentence(str(refused.value))
