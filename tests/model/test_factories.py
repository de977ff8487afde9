"""What is wrong with a factory is one sentence, before any rank runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from suites.model.factory import Model, blocks, examine, made
from tests.model import factories
from tests.plugin.test_plugin import pytest_run

#: What each factory is told, by its name.
WRONG = {
    "net_alone": "expected (net, inputs) with an nn.Module, or a suites.model.factory.Model, got Sequential",
    "of_two_others": "expected (net, inputs) with an nn.Module",
    "takes_an_argument": "calling it without arguments failed with TypeError",
    "not_a_function": "expected a function that returns (net, inputs), got int",
    "nothing": "has no 'nothing'; define it or name another",
    "downloads": "it connects to models.example.org; make the net from its configuration",
    "without_parameters": "the net has no parameters",
    "in_half": "expected parameters of float32 or of float64, got bfloat16",
    "on_meta": "expected parameters on the CPU, got meta",
    "other_weights": "called twice with the same seed it makes other weights",
    "other_inputs": "called twice with the same seed it makes other inputs",
    "same_batches": "all ranks would have the same batch",
    "wraps_what_is_not_there": "wrap names 'layer', which the net does not have",
    "wraps_a_list": "wrap names 'layers', which is a ModuleList",
    "tied_apart": "0.weight and 2.weight are one parameter, but are wrapped apart",
    "does_not_fit": "its forward fails with RuntimeError",
    "float32_only": "its forward fails in float64",
    "drops_out": "set dropout to 0 in the factory",
    "two_losses": "it does not train: expected a loss of no dims that depends on parameters, got one of shape (4,)",
    "frozen": "got none that does",
    "stuck": "it does not train: every gradient is zero",
    "not_finite": "it does not train: the loss or a gradient is not finite",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_factory_is_one_sentence(name: str) -> None:
    """It names the factory and says what was expected, in one line."""
    with pytest.raises(ValueError) as refused:
        examine(f"tests.model.factories:{name}")
    message = str(refused.value)
    assert message.startswith(f"model 'tests.model.factories:{name}': ")
    assert WRONG[name] in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["tests.model.factories", ":net", "no_such_module:net"])
def test_a_name_of_no_factory_is_refused(name: str) -> None:
    """A name without a function, without a module, or of a module that is not there."""
    with pytest.raises(ValueError, match=r"^model '.*': (expected module:function|cannot import)"):
        examine(name)


def test_nothing_runs_with_a_model_that_is_not_fit() -> None:
    """The sentence is all that the run says, and its status is not 0; so it is where no test judges a model."""
    ended = pytest_run("suites/model/own_model.py", "--model", "tests.model.factories:frozen")
    assert ended.returncode == 2
    assert "model 'tests.model.factories:frozen': it does not train" in ended.stdout
    assert "results" not in ended.stdout
    ended = pytest_run("suites/state", "--model", "tests.model.factories:decoder")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--model: none of these tests judges a model; run suites/model/own_model.py" in ended.stderr


@pytest.mark.parametrize("name", ["decoder", "everything"])
def test_a_right_factory_is_told_nothing(name: str) -> None:
    """It is fit to be judged."""
    examine(f"tests.model.factories:{name}")


def test_repeated_blocks_are_wrapped_by_themselves() -> None:
    """Modules of a class that comes several times in a list are, those within them are not, and others are not."""
    inner = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)]
    net = nn.ModuleDict({"blocks": nn.ModuleList([*inner, nn.Linear(2, 2)]), "tail": nn.Sequential(nn.Linear(2, 2))})
    assert blocks(net) == ("blocks.0", "blocks.1")
    assert made("tests.model.factories:decoder").wrapped == tuple(f"layers.{n}" for n in range(4))


def test_batches_are_rolled_and_weights_are_the_same() -> None:
    """Batch 1 has each row's tokens one place on; whatever the random state is, weights are the seed's."""
    model = Model(nn.Linear(1, 1), {"tokens": torch.tensor([[1, 2, 3]]), "scale": torch.tensor(2)})
    assert model.batch(1)["tokens"].tolist() == [[3, 1, 2]]
    assert model.batch(1)["scale"].tolist() == 2
    torch.manual_seed(5)
    first = made("tests.model.factories:decoder").net
    before = torch.get_rng_state()
    second = made("tests.model.factories:decoder").net
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))


def test_every_wrong_factory_is_tried() -> None:
    """The table has all that are here, but those that are right."""
    made_here = {
        name for name, value in vars(factories).items() if getattr(value, "__module__", "") == "tests.model.factories"
    }
    assert made_here - {"linears", "decoder", "everything"} == set(WRONG) - {"not_a_function", "nothing"}


def test_the_entry_point_is_declared() -> None:
    """Where the project is installed, pytest loads what loads the plugin for a model."""
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\nfsdp_conformance = "fsdp_conformance.entry_point"' in text
