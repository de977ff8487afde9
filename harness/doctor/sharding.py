"""Probes of the implementation, on two ranks: what it does otherwise than torch's FSDP2, and so what to declare.

Each shards a layer, runs one backward, and compares the gradient with that of the plain layer. What works and is not
claimed is said, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.doctor.checks import Answer, Check, NotTried, answer, last_line, probe, probes_in, require
from harness.vendor.api import Implementation
from harness.vendor.bounds import set_judged
from harness.vendor.features import Feature
from harness.vendor.load import load_implementation
from harness.worlds.rank import Rank

#: What is sharded, given the implementation, the net and the mesh; how the net runs.
Shards = Callable[[Implementation, nn.Sequential, Any], None]
Runs = Callable[[nn.Module, Tensor], Tensor]
_AVERAGES = "or, if gradients are sums over ranks, say `sums_gradients=True`"
_DECLARE = "take `{}` out of `claims`, with a reason in `not_claimed`; or mend it"


def _todo(feature: Feature) -> str:
    return _DECLARE.format(f"Feature.{feature.name}")


def _shards_all(subject: Implementation, net: nn.Sequential, mesh: Any) -> None:
    assert subject.fully_shard is not None
    subject.fully_shard(net, mesh=mesh)


def _shards_list(subject: Implementation, net: nn.Sequential, mesh: Any) -> None:
    assert subject.fully_shard is not None
    subject.fully_shard(list(net), mesh=mesh)
    subject.fully_shard(net, mesh=mesh)


def _calls(net: nn.Module, inputs: Tensor) -> Tensor:
    out: Tensor = net(inputs)
    return out


def _calls_twice(net: nn.Module, inputs: Tensor) -> Tensor:
    return _calls(net, _calls(net, inputs))


def _gradients(
    rank: Rank,
    subject: Implementation,
    rows: int,
    shards: Shards = _shards_all,
    runs: Runs = _calls,
    dtype: torch.dtype = torch.float32,
) -> str:
    """Train on inputs that differ by rank; how gradients compare with the plain net's: "averages", "sums", or what."""
    net = _net(rows).to(rank.device, dtype)
    shards(subject, net, rank.mesh())
    runs(net, _inputs(rank.number, rows).to(rank.device, dtype)).sum().backward()
    mean = _mean_gradients(rank.size, rows, runs)
    for name, factor in (("averages", 1), ("sums", rank.size)):
        pairs = [
            (_whole(subject, p.grad, p, each), each * factor) for p, each in zip(net.parameters(), mean, strict=True)
        ]
        if all(got.shape == want.shape and torch.equal(got.cpu(), want.to(dtype)) for got, want in pairs):
            return name
    return f"gradients of {[tuple(got.shape) for got, _ in pairs]} that are neither averages nor sums"


def _net(rows: int) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(rows, rows, bias=False), nn.Linear(rows, rows, bias=False))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.arange(rows * rows).view(rows, rows) % 3 - 1)
    return net


def _inputs(number: int, rows: int) -> Tensor:
    return torch.arange(1.0, 1 + rows).view(1, rows) + number


def _mean_gradients(ranks: int, rows: int, runs: Runs) -> list[Tensor]:
    net = _net(rows)
    for number in range(ranks):
        runs(net, _inputs(number, rows)).sum().backward()
    return [p.grad / ranks for p in net.parameters() if p.grad is not None]


def _whole(subject: Implementation, gradient: Any, parameter: Any, like: Tensor) -> Tensor:
    """All of a gradient; ranks' parts end to end, if the implementation says so."""
    if gradient is not None and subject.whole is not None:
        return subject.whole(gradient, parameter).detach()
    part = torch.empty(0) if gradient is None else gradient
    part = part.to_local() if hasattr(part, "to_local") else part
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part.detach().cpu().flatten())
    found = torch.cat(parts)
    return found.view(like.shape) if found.numel() == like.numel() else found


def _tried(subject: Implementation, feature: Feature, train: Callable[[], str]) -> str:
    """What to say of a feature that is tried by training: words, NotTried, or what it raises."""
    try:
        found = train()
    except Exception as error:
        if feature not in subject.claims:
            raise NotTried(f"not claimed, and refused: {last_line(error)}") from None
        raise
    is_right = found in ("averages", "sums")  # which of them is asked once, by ``averages``
    if feature not in subject.claims:
        if not is_right:
            raise NotTried(f"not claimed, and wrong: {found}")
        return f"works: Feature.{feature.name} could be claimed"
    require(is_right, found)
    return ""


@probe(
    "the suites go on with the module that was given, as if it were sharded",
    "shard it in place and return it; a class that wraps can let the module be of that class, as in examples/adapters",
)
def in_place(asked: tuple[Rank, Implementation]) -> str:
    """`fully_shard` returns the module that it was given."""
    rank, subject = asked
    assert subject.fully_shard is not None
    net = _net(4).to(rank.device)
    found = subject.fully_shard(net, mesh=rank.mesh())
    words = "nothing" if found is None else f"another module, a {type(found).__name__}"
    require(found is net, f"expected the module itself, got {words}")
    return ""


@probe(
    "nothing else can be right",
    f"compare with the unsharded layer; {_AVERAGES}; if parts are put together wrongly, set `whole=`",
)
def averages(asked: tuple[Rank, Implementation]) -> str:
    """gradients are the unsharded layer's, averaged over ranks."""
    rank, subject = asked
    found, due = _gradients(rank, subject, 4), "sums" if subject.sums_gradients else "averages"
    require(found == due, f"expected {due}, got {found}")
    return found


@probe("every net whose rows the ranks do not divide fails", _todo(Feature.UNEVEN_ROWS))
def uneven_rows(asked: tuple[Rank, Implementation]) -> str:
    """rows that ranks do not divide are sharded."""
    return _tried(asked[1], Feature.UNEVEN_ROWS, lambda: _gradients(*asked, 3))


@probe("nets of float64 fail, in which sums are exact", _todo(Feature.OTHER_DTYPES))
def other_dtypes(asked: tuple[Rank, Implementation]) -> str:
    """parameters of float64 are sharded."""
    return _tried(asked[1], Feature.OTHER_DTYPES, lambda: _gradients(*asked, 4, dtype=torch.float64))


@probe("several modules cannot be one group", _todo(Feature.MODULE_LISTS))
def module_lists(asked: tuple[Rank, Implementation]) -> str:
    """a list of modules is sharded together."""
    return _tried(asked[1], Feature.MODULE_LISTS, lambda: _gradients(*asked, 4, shards=_shards_list))


@probe(
    "nets behind other nets, and recomputation, lose gradients",
    "run the hooks before backward whichever tensors need gradients",
)
def input_gradients(asked: tuple[Rank, Implementation]) -> str:
    """gradients arrive if the input requires a gradient, too."""
    leaves: list[Tensor] = []

    def runs(net: nn.Module, inputs: Tensor) -> Tensor:
        leaves.append(inputs.requires_grad_())
        return _calls(net, inputs)

    said = _tried(asked[1], Feature.FULLY_SHARD, lambda: _gradients(*asked, 4, runs=runs))
    require(all(leaf.grad is not None for leaf in leaves), "the input got no gradient")
    return said


@probe("modules that are shared, or run in a loop, fail", "gather again for each call, and reduce when all are done")
def called_twice(asked: tuple[Rank, Implementation]) -> str:
    """a net may be called twice before one backward."""
    return _tried(asked[1], Feature.FULLY_SHARD, lambda: _gradients(*asked, 4, runs=_calls_twice))


@probe("state dicts and optimizers see other rows than torch's", f"{_todo(Feature.ROW_LAYOUT)}; see `whole`, too")
def row_layout(asked: tuple[Rank, Implementation]) -> str:
    """each rank has the rows that `torch.chunk` gives it, in a DTensor."""
    rank, subject = asked
    net = _net(4).to(rank.device)
    _shards_all(subject, net, rank.mesh())
    for got, full in zip(net.parameters(), _net(4).parameters(), strict=True):
        part = got.to_local() if hasattr(got, "to_local") else got
        want = full.detach().chunk(rank.size)[rank.number]
        if part.shape != want.shape or not torch.equal(part.detach().cpu(), want):
            words = f"a part of {tuple(part.shape)}, where rows {tuple(want.shape)} of {tuple(full.shape)} are torch's"
            require(Feature.ROW_LAYOUT not in subject.claims, words)
            raise NotTried(f"not claimed: {words}")
    return "" if Feature.ROW_LAYOUT in subject.claims else "works: Feature.ROW_LAYOUT could be claimed"


PROBES = probes_in(globals())
#: The same as ``averages``, asked of ranks that are threads of one process.
THREADS = Check(
    "ranks-as-threads",
    "two ranks can be threads of one process",
    "the thread world says nothing of the implementation",
    "keep no state in classes or modules' globals; or say why not in `one_rank_per_process`",
)


def in_group(rank: Rank, name: str, spec: str) -> Answer:
    """The program of every rank: one of ``PROBES``, of the implementation that ``spec`` names."""
    set_judged(None)  # what is not claimed is tried, too
    subject = load_implementation(spec)
    return answer(lambda: PROBES[name].ask((rank, subject)))
