"""Probes of a device that the CPU has not: how long work may take, and the state of random numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.doctor import device
from harness.doctor.device import Here

CPU = Here.of("cpu", "gloo")


@pytest.mark.parametrize(("seconds", "size", "times"), [(1.0, 64, 1), (0.002, 64, 10), (0.001, 2048, 20)])
def test_work_takes_about_as_long_on_any_device(
    seconds: float, size: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product that takes long is done once; one that takes next to nothing is made larger, and done often."""
    now = iter(range(1000))
    here = replace(CPU, module=SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(device.time, "perf_counter", lambda: next(now) * seconds)
    work: Any = device._long_work(here)
    assert work.args == (size, times)


def test_a_state_of_random_numbers_that_cannot_be_divided_is_wrong() -> None:
    """DTensor needs 16 bytes; a CPU's generator has thousands, and its device module none to ask."""
    module = SimpleNamespace(manual_seed=torch.manual_seed, get_rng_state=torch.get_rng_state)
    with pytest.raises(Exception, match=r"get_rng_state\(\) has 5056 bytes, not 16"):
        device.random_state.ask(replace(CPU, module=module))
