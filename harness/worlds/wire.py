"""Plain data as bytes and back: how results leave a rank without anything being able to run code on arrival.

Subjects' code runs in the ranks, so the controller never unpickles what they send. A message is a JSON header that
draws the tree, then the raw bytes of its tensors in the order in which the header names them::

    encode({"loss": 0.5, "grad": torch.tensor([1., 2.])})
    = b"FSDP" + header length + ["d","loss",0.5,"grad",["T","float32",[2]]] + 8 bytes of numbers
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import torch

from harness.data.text import one_line

#: The largest message, in bytes, that is sent or accepted unless told otherwise.
LIMIT = 1 << 30
#: The largest header: JSON takes many times its size to read, where a tensor takes its own.
HEADER_LIMIT = 1 << 26

_MAGIC = b"FSDP"
_PREFIX = struct.Struct("<4sQ")
_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.quint"))
}
_NAMES = {value: name for name, value in _DTYPES.items()}
_JSON_INTEGER = 1 << 63


def encode(tree: Any, limit: int = LIMIT) -> bytes:
    """The bytes of ``tree``. Raises TypeError for what is no plain data, ValueError for more than ``limit`` bytes."""
    writer = _Writer(limit)
    try:
        header = json.dumps(writer.drawn(tree, ()), separators=(",", ":")).encode()
    except RecursionError:
        raise TypeError("a result must be a tree, but this one is nested too deeply or contains itself") from None
    if len(header) > HEADER_LIMIT:
        raise ValueError(f"a result may have at most {HEADER_LIMIT} bytes beside its tensors, but this one has more")
    writer.count(len(header))
    return b"".join((_PREFIX.pack(_MAGIC, len(header)), header, *writer.blobs))


def decode(message: bytes) -> Any:
    """The tree that ``encode`` was given; tensors are on CPU. Raises ValueError for bytes that it did not make."""
    try:
        magic, length = _PREFIX.unpack_from(message)
        if magic != _MAGIC or length > min(len(message) - _PREFIX.size, HEADER_LIMIT):
            raise ValueError("not a message")
        start = _PREFIX.size + length
        reader = _Reader(memoryview(message)[start:])
        tree = reader.built(json.loads(message[_PREFIX.size : start]))
        if reader.at != len(reader.body):
            raise ValueError(f"{len(reader.body) - reader.at} bytes too many")
        return tree
    except Exception as error:  # a hostile header fails in many ways, and all of them mean the same
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

    def drawn(self, tree: Any, path: tuple[Any, ...]) -> Any:
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

    def blob(self, data: bytes) -> None:
        self.count(len(data))
        self.blobs.append(data)

    def _items(self, tag: str, items: Any, path: tuple[Any, ...]) -> list[Any]:
        return [tag, *[self.drawn(item, (*path, place)) for place, item in enumerate(items)]]

    def _list(self, tree: list[Any], path: tuple[Any, ...]) -> list[Any]:
        return self._items("l", tree, path)

    def _tuple(self, tree: tuple[Any, ...], path: tuple[Any, ...]) -> list[Any]:
        return self._items("t", tree, path)

    def _dict(self, tree: dict[Any, Any], path: tuple[Any, ...]) -> list[Any]:
        drawn: list[Any] = ["d"]
        for key, value in tree.items():
            if type(key) not in (str, int, tuple):
                raise TypeError(f"keys must be str, int or tuple, but {_spelled(path)} has {key!r:.80}")
            drawn += (self.drawn(key, (*path, "a key")), self.drawn(value, (*path, key)))
        return drawn

    def _bytes(self, tree: bytes, path: tuple[Any, ...]) -> list[Any]:
        self.blob(tree)
        return ["b", len(tree)]

    def _dtype(self, tree: torch.dtype, path: tuple[Any, ...]) -> list[Any]:
        return ["y", self._dtype_name(tree, path)]

    def _dtype_name(self, dtype: torch.dtype, path: tuple[Any, ...]) -> str:
        if dtype not in _NAMES:
            raise TypeError(f"dtype {dtype} cannot be sent, at {_spelled(path)}")
        return _NAMES[dtype]

    def _size_of(self, tree: torch.Size, path: tuple[Any, ...]) -> list[Any]:
        return ["s", *tree]

    def _device(self, tree: torch.device, path: tuple[Any, ...]) -> list[Any]:
        return ["v", str(tree)]

    def _tensor(self, tree: torch.Tensor, path: tuple[Any, ...]) -> list[Any]:
        name = self._dtype_name(tree.dtype, path)
        if tree.layout is not torch.strided or tree.device.type == "meta":
            raise TypeError(f"{_spelled(path)} is a {tree.layout} tensor on {tree.device}, which has no plain numbers")
        size = tree.numel() * tree.element_size()
        self.count(size)  # before the copy below, so that too large a result costs no memory
        plain = tree.detach().cpu().contiguous().resolve_conj().resolve_neg()
        self.blobs.append(ctypes.string_at(plain.data_ptr(), size) if size else b"")
        return ["T", name, list(tree.shape)]


_DRAW: dict[type, Callable[[_Writer, Any, tuple[Any, ...]], list[Any]]] = {
    list: _Writer._list,
    tuple: _Writer._tuple,
    dict: _Writer._dict,
    bytes: _Writer._bytes,
    torch.dtype: _Writer._dtype,
    torch.Size: _Writer._size_of,
    torch.device: _Writer._device,
    torch.Tensor: _Writer._tensor,
    torch.nn.Parameter: _Writer._tensor,
}


class _Reader:
    """Builds the tree that a header draws, taking bytes from the body as it goes."""

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 0

    def built(self, drawn: Any) -> Any:
        if not isinstance(drawn, list):
            if isinstance(drawn, dict):
                raise ValueError("unexpected object")
            return drawn
        return _BUILD[drawn[0]](self, drawn[1:])

    def take(self, size: int) -> memoryview:
        if type(size) is not int or not 0 <= size <= len(self.body) - self.at:
            raise ValueError(f"{size} bytes announced, {len(self.body) - self.at} are there")
        self.at += size
        return self.body[self.at - size : self.at]

    def _list(self, items: list[Any]) -> list[Any]:
        return [self.built(item) for item in items]

    def _tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self._list(items))

    def _dict(self, items: list[Any]) -> dict[Any, Any]:
        flat = self._list(items)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _bytes(self, items: list[Any]) -> bytes:
        return bytes(self.take(items[0]))

    def _integer(self, items: list[Any]) -> int:
        return int(items[0], 16)

    def _dtype(self, items: list[Any]) -> torch.dtype:
        return _DTYPES[items[0]]

    def _size_of(self, items: list[Any]) -> torch.Size:
        return torch.Size(items)

    def _device(self, items: list[Any]) -> torch.device:
        return torch.device(items[0])

    def _tensor(self, items: list[Any]) -> torch.Tensor:
        dtype, shape = _DTYPES[items[0]], items[1]
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"shape {shape!r:.80}")
        data = self.take(math.prod(shape) * dtype.itemsize)
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        if data:
            ctypes.memmove(tensor.data_ptr(), bytes(data), len(data))
        return tensor


_BUILD: dict[str, Callable[[_Reader, list[Any]], Any]] = {
    "l": _Reader._list,
    "t": _Reader._tuple,
    "d": _Reader._dict,
    "b": _Reader._bytes,
    "i": _Reader._integer,
    "y": _Reader._dtype,
    "s": _Reader._size_of,
    "v": _Reader._device,
    "T": _Reader._tensor,
}


def _spelled(path: tuple[Any, ...]) -> str:
    return "the result" + "".join(f"[{step!r:.60}]" for step in path)
