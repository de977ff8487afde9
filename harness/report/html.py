"""From a template and untrusted values to HTML that runs nothing but our own script.

Every value passes ``visible`` and jinja's escaping on its way. A content security policy names the hashes of the
document's own style and script, so that a browser runs nothing else even if an escape were missing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

import harness
from harness.data.text import visible


def environment_of(*folders: Path) -> Environment:
    """Where templates of these folders are found; the first folder that has one counts."""
    return Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def html_of(template: Template, style: Iterable[Path], script: Iterable[Path], **values: Any) -> str:
    """The document: ``values``, with our own ``style`` and ``script``, their ``policy``, and our ``version``."""
    css, js = (Markup("".join(path.read_text(encoding="utf-8") for path in paths)) for paths in (style, script))
    policy = f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; base-uri 'none'"
    return template.render(**values, style=css, script=js, policy=policy, version=harness.__version__)


def _shown(value: Any) -> Any:
    """What jinja prints for a value: markup as it is, anything else as visible text (which is then escaped)."""
    return value if isinstance(value, Markup) else visible(str(value))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
