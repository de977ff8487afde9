"""The user's factory: what it returns, and what is wrong with it, in a sentence. Imports no ``torch.distributed``.

    def net():
        return GPT(layers=2), torch.randint(0, 100, (2, 16))

Batch 1 has the inputs rolled by one along their last dim: tokens stay tokens, and labels stay beside them.
"""

from __future__ import annotations

import copy
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from harness.data.text import one_line
from harness.vendor.load import load_factory
from suites.kit.cases import draw, mixed
from suites.oracle.situation import tensors_in

#: The random state in which a factory is called, so that each rank and the oracle have the same weights.
SEED = 0


@dataclass(frozen=True, eq=False)
class Model:
    """What a factory returns; ``(net, inputs)`` is short for the first two.

    ``inputs`` is what forward is called with: a tensor, a tuple, or a dict by name; or a function of the batch's number
    that returns one. ``loss`` makes one scalar of what forward returns; by default it is ``.loss`` of that, else a
    weighted mean of ``.logits`` or of all tensors in it. ``wrap`` names the modules that are sharded by themselves; by
    default they are the repeated blocks, see ``blocks``.
    """

    net: nn.Module
    inputs: Any
    loss: Callable[[Any], Tensor] | None = None
    wrap: Sequence[str] | None = None

    def batch(self, number: int) -> Any:
        """The inputs of a number, of which ranks and steps have one each."""
        if callable(self.inputs):
            return self.inputs(number)
        return tree_map_only(Tensor, lambda each: each.roll(number, -1) if each.dim() else each, self.inputs)

    def run(self, net: Any, number: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Any:
        """What a net gives for a batch, whose floating tensors are in ``dtype``."""

        def there(each: Tensor) -> Tensor:
            return each.to(device, dtype) if each.is_floating_point() else each.to(device)

        given = tree_map_only(Tensor, there, self.batch(number))
        if isinstance(given, dict):
            return net(**given)
        return net(*given) if isinstance(given, (tuple, list)) else net(given)

    def loss_of(self, outputs: Any, number: int) -> Tensor:
        """The scalar that goes backward."""
        if self.loss is not None:
            return self.loss(outputs)
        if isinstance(own := getattr(outputs, "loss", None), Tensor):
            return own
        found = tensors_in(getattr(outputs, "logits", outputs))
        weights = [draw(tuple(each.shape), mixed(SEED, number, place), exact=False) for place, each in enumerate(found)]
        return torch.stack([(each * by.to(each)).mean() for each, by in zip(found, weights, strict=True)]).sum()

    @cached_property
    def dtype(self) -> torch.dtype:
        """That of all parameters."""
        return next(self.net.parameters()).dtype

    @cached_property
    def wrapped(self) -> tuple[str, ...]:
        """The modules that are sharded before the root, those within others first."""
        names = blocks(self.net) if self.wrap is None else tuple(self.wrap)
        return tuple(sorted(dict.fromkeys(names), key=lambda name: -name.count(".")))

    def group_of(self, name: str) -> str:
        """The innermost wrapped module around a parameter, or ``root``."""
        return max((each for each in self.wrapped if name.startswith(f"{each}.")), key=len, default="root")


def blocks(net: nn.Module) -> tuple[str, ...]:
    """Modules with parameters, of a class that comes several times in a ModuleList or Sequential; the outermost."""
    found: list[str] = []
    for prefix, module in net.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not any(
            f"{prefix}.".startswith(f"{x}.") for x in found
        ):
            times = Counter(type(child) for child in module)
            found += [
                f"{prefix}.{name}".lstrip(".")
                for name, child in module.named_children()
                if times[type(child)] > 1 and any(True for _ in child.parameters()) and not is_container(child)
            ]
    return tuple(found)


def is_container(module: nn.Module) -> bool:
    """Whether it has no forward, and so cannot be sharded."""
    return isinstance(module, (nn.ModuleList, nn.ModuleDict))


def made(name: str) -> Model:
    """The model that the factory ``name`` makes. Raises ValueError if it makes none."""
    factory = load_factory(name)
    state = torch.get_rng_state()
    torch.manual_seed(SEED)
    try:
        found = factory()
    finally:
        torch.set_rng_state(state)
    model = Model(*found) if isinstance(found, tuple) and len(found) == 2 else found
    if not isinstance(model, Model) or not isinstance(model.net, nn.Module):
        got = f"a tuple of {len(found)}" if isinstance(found, tuple) else type(found).__name__
        raise ValueError(f"expected (net, inputs) with an nn.Module, or a suites.model.factory.Model, got {got}")
    return model


#: The same, made once: what is asked of it must not change it.
known = lru_cache(maxsize=8)(made)


def examine(name: str) -> None:
    """Raise ValueError that says in one sentence why the model that ``name`` makes is not fit to be judged."""
    try:
        with _without_network() as hosts:
            model = _made_or_why(name, hosts)
            again = made(name)
        _check_net(model)
        _check_repeats(model, again)
        _check_wrapping(model)
        _check_training(model)
    except ValueError as error:
        raise ValueError(one_line(f"model {name!r}: {str(error).removeprefix(f'model {name!r}: ')}")) from error


class _Downloads(Exception):
    """A factory has looked up a host."""


@contextmanager
def _without_network() -> Iterator[list[str]]:
    hosts: list[str] = []

    def refuse(host: Any, *_: Any, **__: Any) -> Any:
        hosts.append(str(host))
        raise _Downloads(f"no connection to {host}: a factory may not download")

    with patch.object(socket, "getaddrinfo", refuse):
        yield hosts


def _made_or_why(name: str, hosts: list[str]) -> Model:
    try:
        model = made(name)
    except ValueError as error:
        why: Exception = error
    except Exception as error:
        why = ValueError(f"calling it without arguments failed with {type(error).__name__}: {error}")
    else:
        why = ValueError()
        if not hosts:
            return model
    if hosts:
        raise ValueError(f"it connects to {hosts[0]}; make the net from its configuration, with random weights")
    raise why


def _check_net(model: Model) -> None:
    parameters = list(model.net.parameters())
    if not parameters:
        raise ValueError("the net has no parameters, so there is nothing to shard")
    dtypes = sorted({str(each.dtype).removeprefix("torch.") for each in parameters})
    if dtypes not in (["float32"], ["float64"]):
        raise ValueError(f"expected parameters of float32 or of float64, got {', '.join(dtypes)}; call .float() on it")
    if devices := sorted({each.device.type for each in parameters} - {"cpu"}):
        raise ValueError(
            f"expected parameters on the CPU, got {', '.join(devices)}; ranks move the net to their device"
        )
    model.net.train()


def _check_repeats(model: Model, again: Model) -> None:
    one, other = model.net.state_dict(), again.net.state_dict()
    if list(one) != list(other) or not all(_equal(one[key], other[key]) for key in one):
        raise ValueError("called twice with the same seed it makes other weights; draw them from torch's own generator")
    if not _same(model.batch(0), again.batch(0)):
        raise ValueError("called twice with the same seed it makes other inputs; draw them from torch's own generator")
    if _same(model.batch(0), model.batch(1)):
        raise ValueError(
            "all ranks would have the same batch, since its inputs are the same when rolled along their last dim; "
            "return a function of the batch's number as inputs"
        )


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else one == other


def _same(one: Any, other: Any) -> bool:
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=False)
    return all(_equal(*pair) for pair in pairs)


def _check_wrapping(model: Model) -> None:
    modules = dict(model.net.named_modules())
    for name in model.wrapped:
        if not name or name not in modules:
            raise ValueError(f"wrap names {name!r}, which the net does not have below its root")
        if is_container(modules[name]):
            raise ValueError(f"wrap names {name!r}, which is a {type(modules[name]).__name__}: name the modules in it")
    places: dict[Tensor, str] = {}
    for name, parameter in model.net.named_parameters(remove_duplicate=False):
        first = places.setdefault(parameter, name)
        if model.group_of(first) != model.group_of(name):
            raise ValueError(f"{first} and {name} are one parameter, but are wrapped apart; wrap a module around both")


def _check_training(model: Model) -> None:
    net = model.net
    try:
        with torch.no_grad():
            seen = [tensors_in(model.run(net, 0, model.dtype)) for _ in range(2)]
        loss = model.loss_of(model.run(net, 0, model.dtype), 0)
    except Exception as error:
        raise ValueError(f"its forward fails with {type(error).__name__}: {error}") from error
    try:
        model.run(copy.deepcopy(net).double(), 0, torch.float64)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"its forward fails in float64, in which it is held against ranks, with {why}") from error
    if not all(torch.equal(*pair) for pair in zip(*seen, strict=True)):
        raise ValueError("forward gives other numbers when it is repeated; set dropout to 0 in the factory")
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        got = f"one of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) and loss.dim() else "none that does"
        raise ValueError(f"it does not train: expected a loss of no dims that depends on parameters, got {got}")
    loss.backward()
    gradients = [each.grad for each in net.parameters() if each.grad is not None]
    if not all(each.isfinite().all() for each in (loss, *gradients)):
        raise ValueError("it does not train: the loss or a gradient is not finite")
    if not any(each.any() for each in gradients):
        raise ValueError("it does not train: every gradient is zero")
    net.zero_grad(set_to_none=True)
