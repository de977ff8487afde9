"""The reference's state dicts and policies, on thread ranks in this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.vendor.load import load_backend, load_implementation
from harness.worlds.base import Fate, describe
from harness.worlds.threads.role import ThreadRanks
from tests.reference import programs


def on_ranks(size: int, program: Any, *args: Any) -> list[Any]:
    """What a program returns on each rank."""
    ranks = ThreadRanks(size, load_implementation("reference"), load_backend("gloo"))
    try:
        outcomes = ranks.run(program, *args)
        assert all(outcome.fate is Fate.RETURNED for outcome in outcomes), describe(outcomes) + outcomes[0].traceback
        return [outcome.value for outcome in outcomes]
    finally:
        ranks.close()


@pytest.mark.parametrize("resumed", [programs.resume, programs.resume_from_meta], ids=["eager", "meta"])
@pytest.mark.parametrize("shape", programs.MESHES.values(), ids=list(programs.MESHES))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_training_goes_on_elsewhere_as_if_it_had_never_stopped(size: int, shape: tuple[int, ...], resumed: Any) -> None:
    """Model and optimizer saved on one mesh and loaded on another take the next step as the original does."""
    model, state, after = on_ranks(size, programs.save, ())[0]
    for rank, resumed_model in enumerate(on_ranks(4, resumed, shape, model, state)):
        if rank:
            assert resumed_model == {}
            continue
        assert list(resumed_model) == list(after)
        for name, tensor in after.items():
            torch.testing.assert_close(resumed_model[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


def test_full_state_is_on_rank_zero_alone() -> None:
    """Other ranks get an empty state dict and no optimizer state."""
    (model, state, _), *others = on_ranks(3, programs.save, ())
    assert list(model) == list(programs.net().state_dict())
    assert set(state["state"]) == {name for name, p in programs.net().named_parameters() if p.requires_grad}
    assert others == [({}, {}, {})] * 2


def test_keys_that_do_not_fit_are_named() -> None:
    """A state dict with a missing and an unknown key is refused by their names."""
    model = programs.net().state_dict()
    model["2.weight"] = model.pop("1.weight")
    ranks = ThreadRanks(2, load_implementation("reference"), load_backend("gloo"))
    outcomes = ranks.run(programs.loads, model)
    ranks.close()
    assert [o.error for o in outcomes] == [
        "ValueError: state dict: missing keys ['1.weight'], unknown keys ['2.weight']"
    ] * 2


@pytest.mark.parametrize(
    ("strategy", "prefix", "placements"),
    [
        ("FULL_SHARD", "FSDP", ["S(0)"]),
        ("SHARD_GRAD_OP", "FSDP", ["S(0)"]),
        ("HYBRID_SHARD", "FSDP", ["R", "S(0)"]),
        ("NO_SHARD", "Replicate", ["R"]),
    ],
)
def test_a_policy_spreads_the_chosen_modules_and_the_root(strategy: str, prefix: str, placements: list[str]) -> None:
    """The policy's modules and the root are taken over by the strategy; what it does not choose stays as it was."""
    for got in on_ranks(4, programs.by_strategy, strategy):
        assert got["classes"] == [f"{prefix}Sequential", "MLP", f"{prefix}Linear", f"{prefix}Linear"]
        assert got["placements"] == placements
        assert got["gradients"] == [name for name, p in programs.net().named_parameters() if p.requires_grad]
