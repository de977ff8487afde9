"""Results travel as plain data, whole or not at all."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from harness.worlds.wire import decode, encode

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)
DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


@given(TREES)
def test_a_tree_comes_back_as_it_was(tree: object) -> None:
    """Every tree of plain data comes back equal, with the same types."""
    again = decode(encode(tree))
    assert again == tree
    assert repr(again) == repr(tree)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324], ids=str)
def test_special_floats_come_back(number: float) -> None:
    """NaN, infinities, minus zero and denormals come back."""
    assert struct.pack("d", decode(encode(number))) == struct.pack("d", number)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_tensors_of_every_dtype_come_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """A tensor comes back with its dtype, shape and bits."""
    size = math.prod(shape) * dtype.itemsize
    bits = torch.arange(size, dtype=torch.uint8) % (2 if dtype is torch.bool else 251)
    tensor = bits.view(dtype).reshape(shape)
    again = decode(encode([tensor]))[0]
    assert (again.dtype, again.shape) == (dtype, torch.Size(shape))
    assert torch.equal(again.reshape(-1).view(torch.uint8), bits)


def test_torch_values_come_back() -> None:
    """dtypes, sizes and devices come back as what they were."""
    values = [torch.bfloat16, torch.Size([2, 3]), torch.device("cuda:1")]
    again = decode(encode(values))
    assert again == values
    assert [type(value) for value in again] == [type(value) for value in values]


def test_a_view_is_sent_as_what_it_shows() -> None:
    """Strides, a conjugate view, an expanded view and the need for gradients are all resolved."""
    matrix = torch.arange(6.0).reshape(2, 3).requires_grad_()
    complexes = torch.tensor([1 + 2j]).conj()
    views = [matrix.t(), matrix[:, 1], torch.ones(1).expand(3), complexes, torch.nn.Parameter(torch.ones(2))]
    for again, view in zip(decode(encode(views)), views, strict=True):
        assert torch.equal(again, view)
        assert not again.requires_grad


def sharded_tensor() -> DTensor:
    """A DTensor on a mesh that needs no peers."""
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        return DTensor.from_local(torch.ones(2), init_device_mesh("cpu", (1,)))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "builtins.object"),
        (1j, "builtins.complex"),
        ({1}, "builtins.set"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (torch.ones(1, device="meta"), "meta"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.finfo, "builtins.type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_plain_data_is_refused_by_place_and_type(value: object, name: str) -> None:
    """What cannot travel raises TypeError that names where it is and what it is."""
    with pytest.raises(TypeError, match=r"'deep'.*0") as caught:
        encode({"deep": [value]})
    assert name in str(caught.value)


def test_a_sharded_tensor_is_refused() -> None:
    """A DTensor is no plain data: a program has to say which part of it is meant."""
    with pytest.raises(TypeError, match="DTensor"):
        encode({"weight": sharded_tensor()})


def test_keys_of_other_types_are_refused() -> None:
    """A key that would not come back as it was is refused."""
    with pytest.raises(TypeError, match=r"'losses'.* has 1\.5"):
        encode({"losses": {1.5: 0}})


def test_a_tree_that_contains_itself_is_refused() -> None:
    """A loop is refused and does not run for ever."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        encode(loop)


def test_too_large_a_result_is_refused_before_it_is_copied() -> None:
    """A result over the limit is refused, even one whose copy would not fit into memory."""
    with pytest.raises(ValueError, match="at most 1073741824 bytes"):
        encode(torch.ones(1).expand(1 << 40))
    with pytest.raises(ValueError, match="at most 10 bytes"):
        encode(b"12345678901", limit=10)


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(100), encode([1, 2])[:-1], encode({"a": torch.ones(2)})[:-1]])
def test_what_is_no_whole_message_is_refused(junk: bytes) -> None:
    """Bytes that no encoder made, or a part of a message, raise ValueError."""
    with pytest.raises(ValueError, match="malformed"):
        decode(junk)
