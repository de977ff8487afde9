"""What casting makes of containers that Python copies in odd ways."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from reference_models.fsdp.mixed_precision import cast, tensors_in


class Attributes(dict[str, Any]):
    """A dict whose items are its attributes."""

    def __init__(self, *args: Any, **items: Any) -> None:
        super().__init__(*args, **items)
        self.__dict__ = self


class Named(dict[str, Any]):
    """A dict that is made of a name and items."""

    def __init__(self, name: str, items: dict[str, Any]) -> None:
        super().__init__(items)
        self.name = name


@dataclass
class Output(OrderedDict[str, Any]):
    """A dict whose fields are items, and which may get more."""

    loss: Any = None

    def __post_init__(self) -> None:
        """Take the field for an item."""
        self["loss"] = self.loss


@dataclass(frozen=True)
class Frozen:
    """A value of which the constructor takes nothing."""

    inner: Any = field(init=False, default=None)


def low(value: Any) -> Any:
    """The value, cast to bfloat16."""
    return cast(value, torch.bfloat16)


def ones() -> torch.Tensor:
    """A float32 tensor."""
    return torch.ones(2)


@pytest.mark.parametrize(
    "value",
    [
        Attributes(x=ones()), Named("n", {"x": ones()}), defaultdict(list, x=ones()), OrderedDict(x=ones()),
        {ones()}, frozenset([ones()]), [(ones(),)], Output(ones()),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_container_that_is_cast_keeps_its_class(value: Any) -> None:
    """Its tensor is cast, and the value that was given is as it was."""
    made = low(value)
    assert type(made) is type(value)
    assert [tensor.dtype for tensor in tensors_in(made)] == [torch.bfloat16]
    assert [tensor.dtype for tensor in tensors_in(value)] == [torch.float32]


def test_dicts_keep_what_they_have_besides_items() -> None:
    """Attributes that are the items stay so; others, and defaults, are copied."""
    made = low(Attributes(x=ones()))
    assert made.x is made["x"]
    assert low(Named("n", {"x": ones()})).name == "n"
    assert low(defaultdict(list, x=ones()))["y"] == []


def test_a_dataclass_that_is_a_dict_keeps_other_items() -> None:
    """Items that are no fields are cast as well, whether or not a field is."""
    for loss in (ones(), None):
        value = Output(loss)
        value["more"] = ones()
        made = low(value)
        assert made.loss is made["loss"]
        assert (list(made), made["more"].dtype) == (["loss", "more"], torch.bfloat16)


def test_fields_of_frozen_dataclasses_that_no_constructor_takes_are_cast() -> None:
    """Neither the constructor nor an assignment would set them."""
    value = Frozen()
    object.__setattr__(value, "inner", ones())
    assert low(value).inner.dtype == torch.bfloat16


@pytest.mark.parametrize("value", [Output(3), Frozen(), {1, 2}, Named("n", {"x": 1}), ([], {})], ids=repr)
def test_what_holds_no_floating_tensor_is_the_same_object(value: Any) -> None:
    """It is not made anew."""
    assert low(value) is value
