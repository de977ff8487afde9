"""Lines of a record file as text and back; the writer and the reader hold each line against this same check.

A record of a failure whose ``ratio`` is written as ``"inf"`` is read as ``(Record(…, ratio=None), ["ratio"])``: an
optional field that does not fit has its default, so that no result is lost with it. A required field that does not
fit is a ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import EnumMeta
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import structs

from harness.data.type_checks import MOST_DEEP, is_json
from harness.records.record import Footer, Header, Line, Record

#: The longest line, in bytes. Readers leave out longer ones, so none is written.
MAX_LINE = 16 * 2**20

AnyLine = TypeVar("AnyLine", bound=Header | Record | Footer)

_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_KINDS: dict[str, type[Line]] = {"header": Header, "record": Record, "footer": Footer}
_FIELDS: dict[Any, tuple[structs.FieldInfo, ...]] = {cls: structs.fields(cls) for cls in _KINDS.values()}


class HeaderError(ValueError):
    """A header that does not fit: what follows it is not known to be of this form."""


def as_line(line: Line) -> str:
    """A line that fits as a line of a record file, without its end."""
    return msgspec.json.encode(escaped(line.as_json())).decode()


def decoded(line: bytes) -> tuple[Line, list[str]]:
    """The line, and the names of the optional fields that did not fit and so have their defaults.

    Raises ValueError with a sentence for what is no JSON object of a known kind, or lacks a required field, and
    ``HeaderError`` for a header.
    """
    try:
        found = _DECODER.decode(line)
        if not isinstance(found, Record) or all(one is None or is_json(one) for one in (found.case, found.near)):
            return found, []
    except (ValueError, RecursionError):
        pass  # what json.loads reads beyond that, such as NaN, may be in an optional field
    data = _object(line)
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        received = f"{kind!r:.40}" if isinstance(kind, str) else type(kind).__name__
        raise ValueError(f'left out, expected "kind": {", ".join(_KINDS)}, got {received}')
    return fitted(_KINDS[kind], data)


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON, so left out; was the file edited, or written by two runs at once?") from error
    if not isinstance(data, dict):
        raise ValueError(f"left out, expected a JSON object, got {type(data).__name__}")
    return data


def fitted(cls: type[AnyLine], data: Mapping[str, Any]) -> tuple[AnyLine, list[str]]:
    """The line of these fields, with the default for each optional one that does not fit, and the names of those.

    Raises ValueError with a sentence if a required field is missing or does not fit; ``HeaderError`` for a header.
    """
    values, wrong = {}, []
    for field in _FIELDS[cls]:
        if field.name not in data:
            if field.required:
                raise _refusal(cls, field, "is missing")
            continue
        try:
            values[field.name] = _converted(data[field.name], field.type)
        except ValueError as error:
            if field.required:
                raise _refusal(cls, field, f"does not fit: {error}{_choices(field.type)}") from error
            wrong.append(field.name)
    return cls(**values), wrong


def optional_fields(line: Line) -> list[str]:
    """The names of the fields that have a default."""
    return [field.name for field in _FIELDS[type(line)] if not field.required]


def _converted(value: Any, hint: Any) -> Any:
    if not is_json(value):
        raise ValueError(f"Expected JSON data with finite numbers, nested less than {MOST_DEEP} deep")
    try:
        return msgspec.convert(value, hint)
    except UnicodeEncodeError:  # a lone surrogate in a key
        return msgspec.convert(escaped(value), hint)


def _refusal(cls: Any, field: structs.FieldInfo, why: str) -> ValueError:
    words = f'"{field.name}" of a {cls.__name__.lower()} {why}; use the version of the suite that wrote it'
    return HeaderError(words) if cls is Header else ValueError(f"left out, {words}")


def _choices(hint: Any) -> str:
    """The words that a field may have, if they are few."""
    words = list(hint) if isinstance(hint, EnumMeta) else get_args(hint)
    return f", expected {', '.join(map(str, words))}" if words else ""


def escaped(value: Any) -> Any:
    """The same data with lone surrogates, which a subject's output may hold and UTF-8 has no bytes for, escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return type(value)(map(escaped, value)) if type(value) in (list, tuple) else value
