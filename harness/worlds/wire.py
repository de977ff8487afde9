"""Plain data as bytes and back: how results leave a rank, through a pipe or from another machine.

A message is a JSON header that draws the tree, then the raw bytes of its tensors in the order in which the header
names them::

    encode({"loss": 0.5, "grad": torch.tensor([1., 2.])})
    = header length + ["d","loss",0.5,"grad",["T","float32",[2]]] + 8 bytes of numbers

Not a pickle: a result that names a subject's classes would have the controller import and run the subject's code.
"""

from __future__ import annotations

import ctypes
import io
import json
import math
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.data.text import one_line

#: The largest message, in bytes, that is sent or accepted unless told otherwise.
LIMIT = 1 << 30

_LENGTH = struct.Struct("<Q")
_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.quint"))
}
_NAMES = {value: name for name, value in _DTYPES.items()}
_JSON_INTEGER = 1 << 63
_Path = tuple[Any, ...]


def encode(tree: Any, limit: int = LIMIT) -> bytes:
    """The bytes of ``tree``. Raises TypeError for what is no plain data, ValueError for more than ``limit`` bytes."""
    writer = _Writer(limit)
    try:
        header = json.dumps(writer.drawn(tree, ()), separators=(",", ":")).encode()
    except RecursionError:
        raise TypeError("a result must be a tree, but this one is nested too deeply or contains itself") from None
    writer.count(len(header))
    return b"".join((_LENGTH.pack(len(header)), header, *writer.blobs))


def decode(message: bytes) -> Any:
    """The tree that ``encode`` was given; tensors are on CPU. Raises ValueError for bytes that it did not make."""
    try:
        body = io.BytesIO(message)
        (length,) = _LENGTH.unpack(body.read(_LENGTH.size))
        return _built(json.loads(body.read(length)), body)
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"malformed message of {len(message)} bytes: {why}") from None


class _Writer:
    """Draws a tree as JSON and collects the bytes that go beside it."""

    def __init__(self, limit: int) -> None:
        self.blobs: list[bytes] = []
        self._limit = limit
        self._size = 0

    def count(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise ValueError(f"a result may have at most {self._limit} bytes, but this one has more: return less")

    def drawn(self, tree: Any, path: _Path) -> Any:
        kind = type(tree)
        if tree is None or kind in (bool, float, str):
            return tree
        if kind is int:
            return tree if -_JSON_INTEGER <= tree < _JSON_INTEGER else ["i", hex(tree)]
        draw = _DRAW.get(kind)
        if draw is None:
            name = f"{kind.__module__}.{kind.__qualname__}"
            raise TypeError(f"a result must be plain data, but {_spelled(path)} is a {name}")
        return draw(self, tree, path)

    def _items(self, items: Iterable[Any], path: _Path) -> list[Any]:
        return [self.drawn(item, (*path, place)) for place, item in enumerate(items)]

    def _dict(self, tree: dict[Any, Any], path: _Path) -> list[Any]:
        drawn: list[Any] = ["d"]
        for key, value in tree.items():
            if type(key) not in (str, int, tuple):
                raise TypeError(f"keys must be str, int or tuple, but {_spelled(path)} has {key!r:.80}")
            drawn += (self.drawn(key, (*path, "a key")), self.drawn(value, (*path, key)))
        return drawn

    def _bytes(self, tree: bytes) -> list[Any]:
        self.count(len(tree))
        self.blobs.append(tree)
        return ["b", len(tree)]

    def _tensor(self, tree: torch.Tensor, path: _Path) -> list[Any]:
        name = _dtype_name(tree.dtype, path)
        if tree.layout is not torch.strided or tree.device.type == "meta":
            raise TypeError(f"{_spelled(path)} is a {tree.layout} tensor on {tree.device}, which has no plain numbers")
        size = tree.numel() * tree.element_size()
        self.count(size)  # before the copy below, so that too large a result costs no memory
        plain = tree.detach().cpu().contiguous().resolve_conj().resolve_neg()
        self.blobs.append(ctypes.string_at(plain.data_ptr(), size) if size else b"")
        return ["T", name, list(tree.shape)]


_DRAW: dict[type, Callable[[_Writer, Any, _Path], list[Any]]] = {
    list: lambda writer, tree, path: ["l", *writer._items(tree, path)],
    tuple: lambda writer, tree, path: ["t", *writer._items(tree, path)],
    dict: _Writer._dict,
    bytes: lambda writer, tree, _: writer._bytes(tree),
    torch.dtype: lambda _, tree, path: ["y", _dtype_name(tree, path)],
    torch.Size: lambda _, tree, __: ["s", *tree],
    torch.device: lambda _, tree, __: ["v", str(tree)],
    torch.Tensor: _Writer._tensor,
    torch.nn.Parameter: _Writer._tensor,
}


def _built(drawn: Any, body: io.BytesIO) -> Any:
    """The tree that a header draws, with bytes taken from the body in its order."""
    return _BUILD[drawn[0]](drawn[1:], body) if isinstance(drawn, list) else drawn


def _list(items: list[Any], body: io.BytesIO) -> list[Any]:
    return [_built(item, body) for item in items]


def _dict(items: list[Any], body: io.BytesIO) -> dict[Any, Any]:
    flat = _list(items, body)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _tensor(items: list[Any], body: io.BytesIO) -> torch.Tensor:
    dtype, shape = _DTYPES[items[0]], items[1]
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(body.read(size)), dtype=dtype).reshape(shape)


_BUILD: dict[str, Callable[[list[Any], io.BytesIO], Any]] = {
    "l": _list,
    "t": lambda items, body: tuple(_list(items, body)),
    "d": _dict,
    "b": lambda items, body: body.read(items[0]),
    "i": lambda items, _: int(items[0], 16),
    "y": lambda items, _: _DTYPES[items[0]],
    "s": lambda items, _: torch.Size(items),
    "v": lambda items, _: torch.device(items[0]),
    "T": _tensor,
}


def _dtype_name(dtype: torch.dtype, path: _Path) -> str:
    if dtype not in _NAMES:
        raise TypeError(f"dtype {dtype} cannot be sent, at {_spelled(path)}")
    return _NAMES[dtype]


def _spelled(path: _Path) -> str:
    return "the result" + "".join(f"[{step!r:.60}]" for step in path)
