"""What must be imported before anything can be asked: torch, the backend's module and plugins, the implementation.

torch is tried in a new Python, which says its answer on stdout; the others in a rank process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from harness.data.text import exit_words
from harness.doctor.checks import Answer, Check, Finding, NotTried, Status, Wrong, answer, finding

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: How an answer begins that says that the command line is wrong, and not a vendor.
REFUSED = "refused: "
_ROOT = str(Path(__file__).resolve().parent.parent.parent)

IMPORT_TORCH = Check(
    "import-torch",
    "`import torch` with every device backend that loads itself",
    "every program on this machine fails at `import torch`, also those that use no device",
    "have the `torch.backends` entry point raise nothing where driver or device are missing, and repair what is "
    "named here; until then set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and name the plugin in `Backend.imports`",
)
BACKEND = Check(
    "backend",
    "the module that `--backend` names, and the `imports` of its `Backend`",
    "no rank can start, so nothing can be judged",
    "import the module by hand with this Python, and install or repair what the last line names",
)
IMPLEMENTATION = Check(
    "implementation",
    "the implementation that `--implementation` names, with a function for each claim",
    "no requirement can be judged",
    "set the missing function of the `Implementation`, or drop its claim with a reason in `not_claimed`",
)
CHECKS = (IMPORT_TORCH, BACKEND, IMPLEMENTATION)


def torch_itself(limit: float) -> Finding:
    """Import torch in a new Python, as a user's program does, within ``limit`` seconds."""
    path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    line = [sys.executable, "-X", "faulthandler", "-m", "fsdp_conformance.run_module"]
    line += ["harness.doctor.imports", str(limit)]
    with tempfile.TemporaryFile("w+") as log:  # and no pipe, which what it starts may hold open
        child = subprocess.Popen(
            line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = child.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        log.seek(0)
        return _told([line for line in log.read().splitlines() if line.strip()], code, limit)


def _told(lines: list[str], code: int, limit: float) -> Finding:
    """The answer, which is the last line; else how it ended, and where, by the stack that faulthandler wrote."""
    last = lines[-1] if lines else ""
    with suppress(ValueError):
        return finding(IMPORT_TORCH, json.loads(last))
    how = f"did not return within {limit:g} s" if any("Timeout (" in line for line in lines) else exit_words(code)
    place = next((line.strip() for line in lines if line.startswith('  File "')), last)
    return Finding(IMPORT_TORCH, Status.WRONG, f"{how}: {place}")


def _torch() -> str:
    began = time.monotonic()
    importlib.import_module("torch")
    if os.environ.get(AUTOLOAD, "1") != "1":
        raise NotTried(f"{AUTOLOAD}={os.environ[AUTOLOAD]} is set")
    names = ", ".join(sorted(entry.name for entry in entry_points(group="torch.backends")))
    return f"loads {names or 'nothing by itself'}, {time.monotonic() - began:.1f} s"


def load(spec: str, kind: str) -> Answer:
    """In a rank process: whether the backend or the implementation of that name can be loaded, with its plugins."""
    return answer(lambda: _backend(spec) if kind == BACKEND.id else _implementation(spec))


def _backend(spec: str) -> str:
    load = importlib.import_module("harness.vendor.load")
    found = _loaded(load.Subject(backend=spec).modules[1], spec, load.load_backend)
    os.environ.update(found.environment)
    for plugin in found.imports:
        importlib.import_module(plugin)
    return f"{found.name}: {found.process_group} on {found.device_type}, {found.ranks} ranks"


def _implementation(spec: str) -> str:
    load = importlib.import_module("harness.vendor.load")
    found = _loaded(load.Subject(spec).modules[0], spec, load.load_implementation)
    return f"{found.name}, {len(found.claims)} features claimed"


def _loaded(module: str, spec: str, load_it: Callable[[str], Any]) -> Any:
    """``load_it(spec)``; first its module alone, so that its own error is seen.

    A module that is nowhere was mistyped, or is not installed; one that is there and fails is a finding.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise NotTried(f"{REFUSED}{spec!r}: no module {error.name!r}; is it installed here, or misspelt?") from None
        raise
    attribute = spec.rpartition(":")[2]
    if ":" in spec and not hasattr(sys.modules[module], attribute):
        raise NotTried(f"{REFUSED}{spec!r}: module {module!r} has no {attribute!r}; define it or name another")
    try:
        return load_it(spec)
    except ValueError as error:
        raise Wrong(str(error)) from None


if __name__ == "__main__":
    import faulthandler

    faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
    print(json.dumps(answer(_torch)), flush=True)
    os._exit(0)  # whatever a vendor has set up to happen at the end
