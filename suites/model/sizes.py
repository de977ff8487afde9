"""How many bytes a rank may hold and must send of the user's model, by shapes alone.

A block of 4 kB and a root of 1 kB on two ranks, resharded after forward: a rank holds 2.5 kB at rest, and gives 2.5 kB
to gathers in forward and again in backward; from reductions it gets 2.5 kB once.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from suites.kit.expected_collectives import padded
from suites.model.cases import ModelCase
from suites.oracle.expected import expected


def parts(case: ModelCase) -> dict[str, int]:
    """The bytes of one rank's part of each group that is communicated together, padded as that of all ranks."""
    found: dict[str, int] = {}
    for name, parameter in case.known.net.named_parameters():
        group = case.known.group_of(name)
        found[group] = found.get(group, 0) + _part(case, parameter)
    return found


def _part(case: ModelCase, parameter: nn.Parameter) -> int:
    return padded(tuple(parameter.shape), case.world_size) * parameter.itemsize


def may_hold(case: ModelCase, activations: int) -> dict[str, int]:
    """The most bytes at each moment of ``programs.held``: a rank's part, and half a group for what is small.

    After forward there are activations besides, after backward gradients.
    """
    groups = parts(case)
    rest, room = sum(groups.values()), max(groups.values()) * case.world_size // 2
    after = {"after forward": rest + activations, "after backward": 2 * rest, "after step": 2 * rest}
    return {name: bytes + room for name, bytes in {"registered": rest, **after, "after drop": rest}.items()}


def must_send(case: ModelCase) -> dict[str, int]:
    """The bytes that a rank gives to gathers, and gets from reductions, in one step with resharding after forward.

    What has no gradient is not reduced.
    """
    if case.world_size == 1:
        return {}
    named, gradients = dict(case.known.net.named_parameters()), expected(case).whole[-1]["gradients"]
    trained = [named[name] for name, gradient in gradients.items() if gradient is not None]
    return {
        "all_gather": 2 * sum(parts(case).values()),
        "reduce_scatter": _all(case, trained),
    }


def _all(case: ModelCase, parameters: Iterable[nn.Parameter]) -> int:
    return sum(_part(case, each) for each in parameters)
