"""Each net really has the stress that it is named for, and runs forward and backward in float32 and float64."""

from __future__ import annotations

import fnmatch
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference_models import nets
from reference_models.nets.transformer import TENSOR_PARALLEL_PLAN

DTYPES = [torch.float32, torch.float64]


def rows_of_tokens() -> Tensor:
    """Two sequences of three tokens, of which one token comes twice."""
    return torch.tensor([[2, 0, 2], [4, 1, 2]])


def features(dtype: torch.dtype, dim: int = 4) -> Tensor:
    """``(2, 3, dim)`` numbers, the same each time."""
    return torch.linspace(-1, 2, 6 * dim, dtype=dtype).sin().reshape(2, 3, dim)


#: How each net is made and called.
RUNS: dict[str, Any] = {
    "MLP": lambda dtype: nets.MLP(4, buffer=True).to(dtype)(features(dtype)),
    "Attention": lambda dtype: nets.Attention(4, 2).to(dtype)(features(dtype)),
    "Branches": lambda dtype: nets.Branches([nn.Linear(4, 4), nets.MLP(4)]).to(dtype)(features(dtype), which=1),
    "Convolution": lambda dtype: nets.Convolution(4).to(dtype)(features(dtype)),
    "Embedding": lambda dtype: nets.Embedding().to(dtype)(rows_of_tokens()),
    "Frozen": lambda dtype: nets.Frozen(4).to(dtype)(features(dtype)),
    "MixedDtypes": lambda dtype: nets.MixedDtypes(4)(features(torch.float32)),
    "MultiHead": lambda dtype: nets.MultiHead(4, 2).to(dtype)(features(dtype)),
    "Norms": lambda dtype: nets.Norms(4).to(dtype)(features(dtype)),
    "Recurrent": lambda dtype: nets.Recurrent(4).to(dtype)(features(dtype)),
    "RootParameters": lambda dtype: nets.RootParameters(4).to(dtype)(features(dtype)),
    "Structured": lambda dtype: nets.Structured(4).to(dtype)({"left": features(dtype), "rest": (features(dtype), 2)}),
    "Tied": lambda dtype: nets.Tied().to(dtype)(rows_of_tokens()),
    "Transformer": lambda dtype: nets.Transformer().to(dtype)(rows_of_tokens()),
    "TransformerBlock": lambda dtype: nets.TransformerBlock(4, 2).to(dtype)(features(dtype)),
    "Twice": lambda dtype: nets.Twice(nn.Linear(4, 4)).to(dtype)(features(dtype)),
    "Uneven": lambda dtype: nets.Uneven(4).to(dtype)(features(dtype)),
}


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an output, however deep."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in fields(value)]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [tensor for item in items for tensor in tensors_in(item)]


def test_every_net_is_tried_here() -> None:
    """No net is exported that these tests do not run."""
    modules = {name for name in nets.__all__ if issubclass(getattr(nets, name), nn.Module)}
    assert modules == set(RUNS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RUNS)
def test_every_net_runs_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    """Outputs are finite, in the dtype of the net, and have a gradient to give back."""
    outputs = tensors_in(RUNS[name](dtype))
    sum(output.sum() for output in outputs).backward()
    assert all(output.isfinite().all() for output in outputs)
    assert {output.dtype for output in outputs} == {torch.float32 if name == "MixedDtypes" else dtype}


def owners(net: nn.Module) -> list[nn.Module]:
    """The modules that hold parameters or buffers themselves."""
    return [m for m in net.modules() if [*m.parameters(recurse=False), *m.buffers(recurse=False)]]


@pytest.mark.parametrize("make", [nets.Norms, nets.RootParameters, nets.MixedDtypes, lambda: nets.MLP(4, buffer=True)])
def test_what_owns_tensors_can_fill_them_again(make: Any) -> None:
    """Every module that owns a parameter or a buffer has ``reset_parameters``, and with it writes all of them."""
    net = make()
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.fill_(77)
    for owner in owners(net):
        owner.reset_parameters()
    assert not any((tensor == 77).any() for tensor in [*net.parameters(), *net.buffers()])


def test_rows_of_the_uneven_net_are_divided_by_no_number_of_ranks() -> None:
    """Neither two, three nor four ranks divide all rows; and there are fewer rows than ranks."""
    rows = {p.size(0) for p in nets.Uneven().parameters()}
    assert rows == {7, 1, 5}
    assert all(any(n % ranks for n in rows) for ranks in (2, 3, 4))


def test_the_tied_weight_is_one_parameter() -> None:
    """Both places hold the same object, which is listed once and has the gradient of both uses."""
    net = nets.Tied()
    assert net.head.weight is net.tokens.weight
    assert [name for name, _ in net.named_parameters()] == ["tokens.weight", "body.weight", "body.bias"]
    net(torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
    assert net.tokens.weight.grad is not None
    assert (net.tokens.weight.grad.abs().sum(1) > 0).all()


def test_frozen_parts_get_no_gradient() -> None:
    """Only the adapter's bias and the norm train, behind and before frozen layers."""
    net = nets.Frozen()
    net(features(torch.float32, 5)).square().sum().backward()
    trained = {name for name, parameter in net.named_parameters() if parameter.grad is not None}
    assert trained == {"adapter.bias", "norm.weight", "norm.bias"}


@pytest.mark.parametrize("which", [0, 1, 3])
def test_one_branch_runs_and_the_others_do_not(which: int) -> None:
    """The branch that the input names has gradients, and no other has."""
    net = nets.Branches([nn.Linear(4, 4), nn.Linear(4, 4)])
    net(features(torch.float32), which=which).sum().backward()
    ran = [branch.weight.grad is not None for branch in net.branches]
    assert ran == [which % 2 == 0, which % 2 == 1]


def test_the_module_of_twice_runs_twice() -> None:
    """One forward calls it two times, the second time on its own output."""
    inner, calls = nn.Linear(4, 4), []
    inner.register_forward_hook(lambda module, args, output: calls.append((args[0], output)))
    output = nets.Twice(inner)(features(torch.float32))
    assert len(calls) == 2
    assert calls[1][0] is calls[0][1]
    assert output is calls[1][1]


def test_norms_have_statistics_of_what_they_saw() -> None:
    """Forward moves the running statistics; all buffers but ``gain`` are in the state dict."""
    net = nets.Norms(4)
    before = net.batch.running_mean.clone()
    net(features(torch.float32))
    assert not net.batch.running_mean.equal(before)
    assert set(dict(net.named_buffers())) - set(net.state_dict()) == {"gain"}


def test_weights_of_convolutions_have_three_dims() -> None:
    """Rows are output channels, input channels, channels, and one; dim 1 cannot be cut in all of them."""
    shapes = {name: tuple(p.shape) for name, p in nets.Convolution(4, bias=False).named_parameters()}
    across = {"depthwise.weight": (4, 1, 3), "gate.weight": (1, 4, 3)}
    assert shapes == {"wide.weight": (8, 4, 3), "narrow.weight": (8, 4, 3), **across}


def test_rows_that_no_token_names_have_no_gradient() -> None:
    """Token 2 has the gradient of its three uses, padding has none, and neither have rows that were not looked up."""
    net = nets.Embedding()
    net(rows_of_tokens()).sum().backward()
    assert net.tokens.weight.grad is not None
    assert net.tokens.weight.grad[:, 0].tolist() == [0, 1, 3, 0, 1, 0, 0]


def test_root_parameters_belong_to_no_child() -> None:
    """Three parameters are the net's own, one of them a single number."""
    own = {name: tuple(p.shape) for name, p in nets.RootParameters().named_parameters(recurse=False)}
    assert own == {"scale": (5,), "shift": (5,), "temperature": (1,)}


def test_dtypes_are_mixed() -> None:
    """Two dtypes train, and a third is frozen."""
    net = nets.MixedDtypes()
    trained = {p.dtype for p in net.parameters() if p.requires_grad}
    assert trained == {torch.float32, torch.float64}
    assert [p.dtype for p in net.parameters() if not p.requires_grad] == [torch.float16]


def test_structures_go_in_and_come_out() -> None:
    """The input is a dict with a tuple in it, the output a dataclass with a dict of a tuple and a list in it."""
    outputs = RUNS["Structured"](torch.float32)
    assert isinstance(outputs, nets.Outputs)
    assert [type(part) for part in outputs.parts.values()] == [tuple, list]
    assert [tensor.requires_grad for tensor in tensors_in(outputs)] == [True, True, False]


def test_the_plan_names_every_module_with_parameters() -> None:
    """The tensor-parallel plan says of each module that owns parameters how it is cut, and names no other."""
    net = nets.Transformer(tied=False)
    holders = {name for name, module in net.named_modules() if [*module.parameters(recurse=False)]}
    matches = {name: [key for key in TENSOR_PARALLEL_PLAN if fnmatch.fnmatch(name, key)] for name in holders}
    assert {len(keys) for keys in matches.values()} == {1}
    assert {key for keys in matches.values() for key in keys} == set(TENSOR_PARALLEL_PLAN)
    assert set(TENSOR_PARALLEL_PLAN.values()) == {"column", "row", "replicated"}


def cut(module: nn.Linear, style: str, part: int) -> nn.Linear:
    """Half of a layer, as the plan says; a row-wise layer's bias counts once."""
    dim = {"column": 0, "row": 1}[style]
    half = nn.Linear(1, 1, bias=module.bias is not None).double()
    half.weight = nn.Parameter(module.weight.chunk(2, dim)[part])
    if module.bias is not None:
        bias = module.bias.chunk(2)[part] if style == "column" else module.bias * (part == 0)
        half.bias = nn.Parameter(bias.detach())
    return half


@pytest.mark.parametrize("which", ["attention", "mlp"])
def test_halves_cut_by_the_plan_sum_to_the_whole(which: str) -> None:
    """Of attention and of the MLP, the outputs of two ranks that each hold a half by the plan sum to the whole's."""
    block, x = nets.TransformerBlock(4, 2).double(), features(torch.float64)
    want = block.get_submodule(which)(x)
    total = torch.zeros_like(want)
    for part in (0, 1):
        half = nets.TransformerBlock(4, 2).double()
        for key, style in TENSOR_PARALLEL_PLAN.items():
            name = key.removeprefix("layers.*.")
            if name.startswith(f"{which}."):
                owner, _, child = name.partition(".")
                setattr(half.get_submodule(owner), child, cut(block.get_submodule(name), style, part))
        total = total + half.get_submodule(which)(x)
    assert torch.allclose(total, want, rtol=0, atol=1e-12)


def test_attention_never_calls_its_last_layer() -> None:
    """The weight of ``out_proj`` is used, and has a gradient, though its forward is not called."""
    net, calls = nets.MultiHead(4), list[str]()
    net.attention.out_proj.register_forward_hook(lambda *_: calls.append("called"))
    net(features(torch.float32)).sum().backward()
    assert (calls, net.attention.out_proj.weight.grad is not None) == ([], True)
