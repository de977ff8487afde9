"""Writing what was made of record files: never over one of them, and never half of it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.records.codec import escaped
from harness.records.reader import RecordFileError


def write_output(path: Path, text: str, inputs: Iterable[Path], option: str, what: str) -> None:
    """Write a file made from ``inputs``: the old one or the new one is there at any time, and no input is replaced.

    Raises ``RecordFileError`` or OSError with a sentence that names the file and the option that chose it.
    """
    if path.is_dir():
        raise RecordFileError(f"{path}: is a directory; name the {what} itself, such as {option} {path / what}")
    if path.exists() and any(path.samefile(one) for one in inputs):
        raise RecordFileError(f"{path}: is one of the record files, which it would replace; choose another {option}")
    replace_file(path, text.encode("utf-8"), option)


def replace_file(path: Path, data: bytes, option: str) -> None:
    """Write beside the file, then move into place; raises OSError with a sentence that names ``option``, too."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(data)
        os.replace(beside, path)
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(f"{path}: cannot be written ({why}); choose another place with {option}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def json_document(tree: Any, indent: int | None = 2) -> str:
    """JSON for other programs: ASCII, without lone surrogates. Numbers are finite already, or it raises ValueError."""
    return json.dumps(escaped(tree), indent=indent, allow_nan=False)
