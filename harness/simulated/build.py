"""Builds the extension on first use, into a cache: one compilation of about half a minute, then none until it changes.

The cache is ``$XDG_CACHE_HOME/fsdp-conformance`` or ``~/.cache/fsdp-conformance``; a file's name has torch's version
and a digest of the sources, so that versions do not meet.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "csrc"
#: Versions of torch whose headers the sources fit.
OLDEST, NEWEST = (2, 11), (2, 15)


class CannotBuild(ImportError):
    """The simulated device cannot be built here; the message says why, and what to do."""


def library() -> Path:
    """The extension's file, built if it is not there yet. Raises CannotBuild."""
    path = _cache() / f"simulated-{torch.__version__}-{_digest()}.so"
    if not path.exists():
        _build(path)
    return path


def unavailable() -> str:
    """Why the simulated device cannot be had here, in a sentence; "" if it can, also if it has yet to be built."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        wanted = " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
        return f"the simulated device needs torch {wanted}, got {torch.__version__}"
    if _compiler() is None:
        return "the simulated device needs a C++20 compiler: install g++ or clang++, or name one in CXX"
    return ""


def _compiler() -> str | None:
    named = os.environ.get("CXX")
    return next(
        (found for name in ([named] if named else ["c++", "g++", "clang++"]) if (found := shutil.which(name))), None
    )


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fsdp-conformance"


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(path: Path) -> None:
    """Compile beside the final place, then rename: no reader finds half a file. Others who want it wait."""
    if why := unavailable():
        raise CannotBuild(why)
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"building the simulated device, about half a minute: {path}", file=sys.stderr, flush=True)
    with _alone(path.parent), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if path.exists():  # another process has built it meanwhile
            return
        made = Path(folder) / path.name
        done = subprocess.run([*_command(), "-o", str(made)], capture_output=True, text=True)
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
            raise CannotBuild(f"the simulated device does not compile with {shlex.join(_command()[:1])}: {first}")
        made.replace(path)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process."""
    place = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)


def _command() -> list[str]:
    compiler = _compiler()
    assert compiler is not None
    home = Path(torch.__file__).parent
    include = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{home / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [
        compiler,
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-shared",
        "-w",
        abi,
        *include,
        str(SOURCES / "simulated.cpp"),
        *libraries,
    ]
