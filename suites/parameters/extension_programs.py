"""Nets with coded weights: what is drawn, and what runs on ranks."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from harness.worlds.rank import Rank
from suites.kit.cases import Stack, TrainingCase, as_case
from suites.kit.programs import apply, steps, write
from suites.kit.strategies import stacks, training_cases
from suites.parameters import coded
from suites.parameters.coded import NOTES
from suites.parameters.registration import CountingGather


@dataclass(frozen=True)
class CodedCase(TrainingCase):
    """``kind`` is the class of the weights, by name; ``low`` the dtype that mixed precision asks for, if it does."""

    kind: str = "Parted"
    low: str | None = None

    def coded(self) -> nn.Sequential:
        """The net with coded weights."""
        return coded.coded(self.build(), getattr(coded, self.kind))


@st.composite
def coded_cases(
    draw: st.DrawFn,
    /,
    kind: str = "Parted",
    low: str | None = None,
    even: bool = False,
    mesh: tuple[int, int] | None = None,
    **fixed: Any,
) -> CodedCase:
    """Training cases whose weights of two dims are coded; with ``even``, ranks divide all their rows.

    Shards are two at least, unless ``mesh`` is given. Cases are exact unless ``exact`` is fixed: what goes through a
    code comes out of it bit for bit.
    """
    fixed = {"exact": True, **fixed}
    if "reshard_after_forward" not in fixed:
        fixed["reshard_after_forward"] = draw(st.sampled_from([True, None, False]))
    if even:
        fixed["world_size"] = size = draw(st.sampled_from([2, 4]))
        net = Stack(4 if size == 4 else draw(st.sampled_from([2, 4])), ("mlp",), draw(st.integers(1, 2)))
        fixed["net"] = net
    if mesh is not None:
        fixed |= {"mesh": mesh, "world_size": mesh[0] * mesh[1]}
    if low is not None:  # a buffer keeps its dtype, and what it is added to takes it on
        fixed["net"] = draw(stacks(most_blocks=2, largest=5, buffers=False))
    case = draw(training_cases(**fixed))
    found: CodedCase = as_case(CodedCase, case, kind=kind, low=low)
    return found


def train_coded(rank: Rank, case: CodedCase) -> dict[str, Any]:
    """Shard a net of coded weights, and train it."""
    NOTES.begin()
    net = apply(rank, case, case.coded(), reshard_after_forward=case.reshard_after_forward)
    return {"trace": tree_map_only(Tensor, coded.plain, steps(rank, case, net)), "hooks ran": bool(NOTES.calls)}


def train_patched(rank: Rank, case: CodedCase) -> dict[str, Any]:
    """Build and shard on meta; give memory, and hooks to the local tensors themselves; write weights; train.

    ``to_local()`` of a parameter is a view of its local tensor, hence the attribute of DTensors.
    """
    NOTES.begin()
    with torch.device("meta"):
        net = case.net.build().to(case.torch_dtype)
        apply(rank, case, net, reshard_after_forward=case.reshard_after_forward)
    net.to_empty(device=rank.device)
    write(rank, case, net)
    for parameter in net.parameters():
        if parameter.dim() == 2:
            patch(parameter._local_tensor, getattr(coded, case.kind))  # type: ignore[attr-defined]
    return {"trace": tree_map_only(Tensor, coded.plain, steps(rank, case, net)), "hooks ran": bool(NOTES.calls)}


def patch(tensor: Tensor, kind: Any) -> None:
    """Give one tensor the hooks of a class."""
    for name in ("fsdp_pre_all_gather", "fsdp_post_all_gather"):
        setattr(tensor, name, MethodType(getattr(kind, name), tensor))


def note_hooks(rank: Rank, case: CodedCase) -> dict[str, Any]:
    """Run forward twice without gradients, every group sharded again after each; what the hooks noted, by weight."""
    NOTES.begin()
    policy, options = rank.implementation.mixed_precision_policy, {}
    if case.low is not None:
        assert policy is not None
        options["mp_policy"] = policy(param_dtype=getattr(torch, case.low))
    net = apply(rank, case, case.coded(), reshard_after_forward=True, **options)
    seen: list[torch.dtype] = []
    for module in net.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda module, _: seen.append(module.weight.dtype))
    freed = []
    with torch.no_grad():
        for step in range(2):
            net(case.inputs(step, rank.number).to(rank.device))
            freed += [NOTES.filled(module) for module in NOTES.inner]
    names = {module: name for name, module in net.named_modules()}
    filled = [call.pop("filled") for call in NOTES.calls]
    calls = [{**call, "module": names[call["module"]], "policy": call["policy"].param_dtype} for call in NOTES.calls]
    return {"calls": calls, "seen": list(dict.fromkeys(seen)), "filled in hooks": filled, "filled after": freed}


def gathers(rank: Rank, case: CodedCase) -> list[int]:
    """How many times the root's collective is called, for each of two forwards without gradients."""
    net = apply(rank, case, case.coded(), reshard_after_forward=True)
    counting = CountingGather()
    net.set_custom_all_gather(counting)  # type: ignore[operator]
    counts = []
    with torch.no_grad():
        for step in range(2):
            counting.calls = 0
            net(case.inputs(step, rank.number).to(rank.device))
            counts.append(counting.calls)
    return counts


# What is refused.


def shard_coded_to_groups(rank: Rank, case: CodedCase) -> dict[str, Any]:
    """Train with shards over smaller groups; whether that was refused."""
    try:
        return train_coded(rank, case)
    except (NotImplementedError, ValueError, AssertionError) as error:
        return {"refused": type(error).__name__}


def unshard_unpadded(rank: Rank, case: CodedCase) -> str:
    """On ranks with fewer rows than the first: the error of unsharding; others, which see no error, do nothing."""
    net = apply(rank, case, case.coded())
    rows = [p.to_local().size(0) for p in net.parameters() if p.dim() == 2]  # type: ignore[attr-defined]
    if all(own == -(-p.size(0) // case.shards) for own, p in zip(rows, weights(net), strict=True)):
        return "all rows are here"
    try:
        net.unshard()  # type: ignore[operator]
    except (AssertionError, ValueError) as error:
        return f"refused: {error}"
    return "not refused"


def weights(net: nn.Module) -> list[nn.Parameter]:
    """The parameters of two dims."""
    return [parameter for parameter in net.parameters() if parameter.dim() == 2]
