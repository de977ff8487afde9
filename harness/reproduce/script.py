"""A plain script that shows a failure with torch alone: a template of the suites, filled with checked values.

The suites' package ``plain_scripts`` says which template fits a requirement, and what fills it. Whatever a template
prints goes through ``literal``: of a record that is numbers, bools and None, so nothing of it can become code::

    literal((2, 0.5, torch.float64))      →  "(2, 0.5, torch.float64)"
    literal("__import__('os')")           →  ValueError
    code("nn.Linear({}, {})", 3, 5)       →  "nn.Linear(3, 5)", which is text of ours with such values in it
"""

from __future__ import annotations

import importlib
import keyword
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness import __version__
from harness.data.text import one_line
from harness.reproduce.choose import Choice
from harness.vendor.api import Implementation
from harness.vendor.load import load_backend, target

#: Where the suites keep their templates: a package with ``TEMPLATES``, a folder, and ``filled_by(requirement, case)``,
#: which gives a template's name, what it uses of the subject, and its values; or None if no template fits.
PACKAGE = "suites.plain_scripts"
MOST_LINES, WIDTH = 80, 116
#: The packages of the built-in implementations, for the one import that a reader replaces.
BUILT_IN = {"torch": "torch.distributed.fsdp", "reference": "reference_models.fsdp"}
#: What a template may use of the subject, by torch's names for it, and where an ``Implementation`` has it.
USABLE = {
    "fully_shard": "fully_shard",
    "MixedPrecisionPolicy": "mixed_precision_policy",
    "CPUOffloadPolicy": "cpu_offload_policy",
    "state_dicts": "state_dicts",
}
TORCHS_STATE_DICTS = "from torch.distributed.checkpoint import state_dict as state_dicts"


class NoScript(ValueError):
    """There is no script for this record; the message says why."""


class Code(str):
    """Python that we wrote: it may stand in a script as it is."""


def code(text: str, *values: Any) -> Code:
    """Our own ``text`` with values in it, each as a literal."""
    return Code(text.format(*map(literal, values)))


def literal(value: Any) -> str:
    """A value as Python. Raises ValueError for text that is not ours, and for anything that has no literal."""
    if isinstance(value, (Code, torch.dtype)):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value!r}")'
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    if isinstance(value, (tuple, list)):
        items = [literal(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    raise ValueError(f"expected a number, a bool or None in a script, got {one_line(repr(value), 80)}")


def script_of(choice: Choice) -> str:
    """The text of the script. Raises NoScript where there is none; ValueError if the case or the subject is wrong."""
    if choice.case is None:
        raise NoScript(f"no case was recorded for {choice.test.requirement}, and scripts show cases")
    package = importlib.import_module(PACKAGE)
    filling = package.filled_by(choice.test.requirement, choice.case)
    if filling is None:
        raise NoScript(f"there is no template of a script for this case of {choice.test.requirement}")
    template, uses, values = filling
    environment = Environment(
        loader=FileSystemLoader(package.TEMPLATES),
        undefined=StrictUndefined,
        finalize=literal,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template(template).render(
        case=choice.case, **_header(choice), **_subject(choice, uses), **values
    )
    if text.count("\n") > MOST_LINES:
        raise NoScript(f"a script of this case would have more than {MOST_LINES} lines")
    return text


def _header(choice: Choice) -> dict[str, Any]:
    """What the docstring says, and where ranks run."""
    backend = load_backend(choice.backend)
    statement = " ".join((choice.function.__doc__ or "").split())
    return {
        "statement": Code(textwrap.fill(f"{choice.test.requirement}: {statement}", WIDTH)),
        "version": Code(__version__),
        "device": Code(repr(backend.device_type)),
        "accelerator": backend.device_type != "cpu",
        "process_group": Code(repr(backend.process_group)),
        "backend_modules": [_dotted(module, choice.backend) for module in backend.imports],
        "environment": [(Code(repr(name)), Code(repr(value))) for name, value in backend.environment.items()],
    }


def _subject(choice: Choice, uses: Sequence[str]) -> dict[str, Code]:
    """The lines that import what the script uses of the subject, and what must be installed for them."""
    if choice.implementation in BUILT_IN:
        package = BUILT_IN[choice.implementation]
        own = [name for name in uses if name != "state_dicts"]
        lines = [f"from {package} import {', '.join(own)}  # replace by yours"]
        lines += [TORCHS_STATE_DICTS] if "state_dicts" in uses else []
    else:
        spec = ".".join(target(choice.implementation, Implementation))
        package, _, attribute = _dotted(spec, choice.implementation).rpartition(".")
        lines = [f"from {package} import {attribute} as subject  # replace by yours"]
        lines += [f"{', '.join(uses)} = {', '.join(f'subject.{USABLE[name]}' for name in uses)}"]
    top = package.partition(".")[0]
    return {"subject": Code("\n".join(lines)), "needs": Code("torch" if top == "torch" else f"torch and {top}")}


def _dotted(name: str, given: str) -> Code:
    """A dotted name that the user, or a backend of the user's, gave. Raises ValueError if it is no such name."""
    if not all(word.isidentifier() and word.isascii() and not keyword.iskeyword(word) for word in name.split(".")):
        raise ValueError(f"{one_line(given, 80)!r}: expected names that Python can import, got {one_line(name, 80)!r}")
    return Code(name)
