"""Building the simulated device: what is said where it cannot be built."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.simulated import build
from harness.vendor.load import load_backend


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache in which nothing was built yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_without_a_compiler_one_sentence_says_what_to_install(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No path leads to a compiler: the message names some."""
    monkeypatch.setenv("PATH", str(empty_cache))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        build.CannotBuild, match="needs a C\\+\\+20 compiler: install g\\+\\+ or clang\\+\\+"
    ) as refused:
        build.library()
    assert "\n" not in str(refused.value)


def test_another_torch_is_refused_by_its_version(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources fit some versions of torch's headers."""
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(build.CannotBuild, match=r"needs torch 2\.11 to 2\.15, got 2\.9\.1"):
        build.library()


def test_what_does_not_compile_is_shown_by_its_first_error(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And nothing is left in the cache."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "simulated.cpp").write_text("#error no such device\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(build.CannotBuild, match=r"does not compile with .*no such device"):
        build.library()
    assert list((empty_cache / "fsdp-conformance").iterdir()) == []


def test_the_backend_is_found_by_its_name() -> None:
    """It is built in, on a device type of its own."""
    assert load_backend("simulated").device_type == "simulated"
