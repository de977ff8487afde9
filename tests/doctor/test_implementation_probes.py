"""What the doctor says of an implementation: what works and could be claimed, and what to take out of the claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from harness.doctor.__main__ import examine
from harness.doctor.checks import Status
from harness.doctor.examination import Examination
from harness.vendor import Feature, Implementation
from tests.conforming.layouts import gives_sums, keeps_replicas, takes_even_rows
from tests.patience import GUARD

PATIENCE = 120.0
silent_sums = replace(gives_sums, sums_gradients=False)
rash = replace(takes_even_rows, claims=takes_even_rows.claims | {Feature.UNEVEN_ROWS}, not_claimed={})
shy = replace(keeps_replicas, claims=frozenset({Feature.FULLY_SHARD}), one_rank_per_process="it is shy")


class Wrapper(nn.Module):
    """What takes a net into itself."""

    def __init__(self, net: nn.Module, **_: Any) -> None:
        super().__init__()
        self.net = net


wraps = Implementation(name="wraps", claims=frozenset({Feature.FULLY_SHARD}), fully_shard=Wrapper)
HERE = "tests.doctor.test_implementation_probes"


@pytest.mark.parametrize(
    ("implementation", "check", "state", "said"),
    [
        ("tests.conforming.layouts:gives_sums", "averages", Status.FOUND, "sums"),
        (f"{HERE}:silent_sums", "averages", Status.WRONG, "expected averages, got sums"),
        (f"{HERE}:silent_sums", "called-twice", Status.FOUND, ""),
        ("tests.conforming.layouts:takes_even_rows", "uneven-rows", Status.NOT_TRIED, "not claimed, and refused"),
        ("tests.conforming.layouts:takes_float32", "other-dtypes", Status.NOT_TRIED, "not claimed, and refused"),
        ("tests.conforming.layouts:takes_float32", "in-place", Status.FOUND, ""),
        (f"{HERE}:wraps", "in-place", Status.WRONG, "expected the module itself, got another module, a Wrapper"),
        (f"{HERE}:rash", "uneven-rows", Status.MISSING, "Uneven sharding of (3, 3) over 2 ranks"),
        (f"{HERE}:shy", "uneven-rows", Status.FOUND, "works: Feature.UNEVEN_ROWS could be claimed"),
        (f"{HERE}:shy", "row-layout", Status.NOT_TRIED, "not claimed: a part of (4, 4)"),
        (f"{HERE}:shy", "ranks-as-threads", Status.NOT_TRIED, "it is shy"),
        ("tests.conforming.layouts:keeps_replicas", "called-twice", Status.FOUND, ""),
        ("tests.conforming.layouts:keeps_replicas", "input-gradients", Status.FOUND, ""),
    ],
)
def test_a_probe_says_what_to_declare(implementation: str, check: str, state: Status, said: str) -> None:
    """A small layer is trained on two ranks; what is found is held against the claims."""
    examined = examine(Examination(implementation, "gloo", PATIENCE, GUARD, only=("nothing", check)))
    found = next(found for found in examined.findings if found.check.id == check)
    assert found.state is state
    assert said in found.said
