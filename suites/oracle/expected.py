"""What each rank must show after every action of a situation, and how far off it may be.

[Note: the bound]
The oracle is the unsharded model in float64. Let e be how far it is off when it rounds as ranks do, each dtype where
the policy has it: so much does this net, with these numbers, magnify roundings. In float64 it rounds in float32, and e
counts 2**-29 of itself. Sharding adds the mean over n ranks only: another order of n additions, and one more or one
less rounding for the division; by the standard bound for recursive summation (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 4.2) at most (n + 1) · u · m, with u the unit roundoff of the coarsest dtype and
m the mean of absolute values. Later steps start from weights that differ so, and amplify it as they amplify e::

    allowed = SAMPLES · max(e) + STEPS_FACTOR · (n + 1) · u · max(m)

with maxima over each parameter with its gradients, buffer, or loss, and all actions. Where all is exact nothing is.
Tensor parallelism and the kernels of a device round everything anew, of which e in one small tensor is a poor sample:
there e is that of the tensor that is relatively worst, and n counts all ranks. A loss may be smaller than what it sums:
its m is 1 at least.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from harness.data.comparison import Allowance, exact
from harness.vendor.bounds import averages, device_type
from suites.oracle.facts import compared
from suites.oracle.situation import Situation, Step, Trace
from suites.oracle.together import COARSE, TIMES, together
from suites.oracle.unsharded import State, Unsharded, played_with_sizes

#: How much larger a rounding error may be than the one sample of it that e is: small tensors behind norms and Adam.
SAMPLES = 32.0
#: The difference after a step feeds the next. Weights are scaled by their fan-in, so three steps of these nets amplify
#: it by less than this: the worst seen in 250 drawn cases is 0.14 of what is allowed.
STEPS_FACTOR = 16.0
#: Tensors and what they are called; one name may come several times.
Named = Iterable[tuple[str, Tensor]]


class Expected:
    """What is expected in a situation; ``within`` is how far off results may be."""

    def __init__(self, case: Any, model: type[Unsharded] = Unsharded) -> None:
        self.case, self.model = case, model
        self.wide, self.magnitudes = played_with_sizes(case, working=case.plays_in_own_dtypes, model=model)

    @cached_property
    def within(self) -> Allowance:
        """The bound of the note."""
        return exact if self.case.exact else allowed(self.case, self.rounded, self.wide, self.magnitudes)

    @cached_property
    def rounded(self) -> list[State]:
        """What every action leads to where it is rounded as on ranks."""
        return played_with_sizes(self.case, working=True, model=self.model)[0]

    @cached_property
    def together(self) -> dict[str, float]:
        """By what is seen, what share of itself all of it may be off; of nothing where roundings are fine."""
        if self.case.exact or (unit := roundoff(self.case)) < COARSE:
            return {}
        times = SAMPLES if rounds_anew(self.case) else TIMES
        return together(self.rounded, self.wide, times, (self.case.world_size + 1) * unit)

    @cached_property
    def whole(self) -> list[dict[str, Any]]:
        """Each step's losses, those of a rank in a list of its own; its gradients and updated parameters, whole."""
        steps: list[dict[str, Any]] = []
        losses: list[list[Tensor]] = [[] for _ in range(self.case.data_ranks)]
        gradients: dict[str, Tensor | None] = {}
        for action, seen in zip(self.case.actions, self.wide, strict=True):
            gradients = seen.get("gradients", gradients)
            for own, found in zip(losses, seen["found"], strict=True):
                own.extend(found.get("losses", ()))
            if action == "step":
                steps.append({"losses": losses, "gradients": gradients, "parameters": seen["parameters"]})
                losses = [[] for _ in losses]
        return steps

    def trace(self, rank: int) -> Trace:
        """What one rank must show of each step; the losses of micro-batches are one tensor."""
        return [
            Step(
                loss=one(step["losses"][self.case.data_rank(rank)]),
                gradients=self.of_parameters(step["gradients"], rank),
                parameters=self.of_parameters(step["parameters"], rank),
            )
            for step in self.whole
        ]

    def on_rank(self, place: int, rank: int) -> State:
        """What one rank must show after one action."""
        seen = self.wide[place]
        return {name: getattr(self, f"of_{name}", self.alike)(seen[name], rank) for name in seen}

    def alike(self, seen: Any, _: int) -> Any:
        """What is the same on all ranks."""
        return seen

    def of_parameters(self, tensors: Mapping[str, Tensor | None], rank: int) -> State:
        """A rank's parts of whole tensors."""
        return {name: self.part(rank, name, full) for name, full in tensors.items()}

    def part(self, rank: int, name: str, full: Tensor | None) -> Tensor | None:
        """What is compared of one on a rank; a count, which has no dims, is the same on all."""
        part: Tensor | None = full if full is None or full.dim() == 0 else self.case.seen(rank, name, full)
        return part

    of_gradients = of_stashed = of_parameters

    def of_optimizer(self, kept: dict[str, Any], rank: int) -> State:
        """A rank's parts of what an optimizer keeps."""
        return {name: {key: self.part(rank, name, full) for key, full in each.items()} for name, each in kept.items()}

    def of_buffers(self, buffers: list[State], rank: int) -> State:
        """A rank's own buffers."""
        place: int = self.case.data_rank(rank)
        return buffers[place]

    def of_found(self, found: list[State], rank: int) -> State:
        """What an action gives on a rank; of a state, its form's part."""
        return {name: self.state(name, value, rank) for name, value in found[self.case.data_rank(rank)].items()}

    def state(self, form: str, state: Any, rank: int) -> Any:
        """A state in a form, if it is one: parts of parameters, and buffers as they are; or nothing but on rank 0."""
        if form == "sharded":
            return {name: self.part(rank, name, full) if name in self.cut else full for name, full in state.items()}
        return {} if form == "rank zero" and rank else state

    @cached_property
    def cut(self) -> set[str]:
        """The names of parameters in a state; one that is shared has several."""
        return {name for name, _ in self.built.named_parameters(remove_duplicate=False)}

    def of_facts(self, facts: dict[str, Any], _: int) -> State:
        """What a sharded parameter says of itself; its gradient has its dtype."""
        return {name: self.facts(name, *each) for name, each in facts.items()}

    def facts(self, name: str, full: Tensor, trains: bool, has_gradient: bool) -> State:
        """What one does."""
        dtype = self.dtypes[name]
        found: State = self.case.facts(name, full, trains)
        return compared({**found, "dtype": dtype, "gradient": dtype if has_gradient else None})

    def of_dtypes(self, _: Any, __: int) -> State:
        """The dtype of every parameter and buffer, which training does not change."""
        return self.dtypes

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """Those with which the net is built."""
        tensors = [*self.built.named_parameters(), *self.built.named_buffers()]
        return {name: str(tensor.dtype) for name, tensor in tensors}

    @cached_property
    def built(self) -> nn.Module:
        """The net as ranks build it."""
        net: nn.Module = self.case.build_in(None)
        return net


def one(losses: list[Tensor]) -> Tensor:
    """One loss as it is, several in one tensor."""
    return losses[0] if len(losses) == 1 else torch.stack(losses)


def allowed(
    case: Situation, rounded: list[State], wide: list[State], magnitudes: list[tuple[str, Tensor]]
) -> Allowance:
    """The bound of the note, by the name that ends a path."""
    errors, sizes = measured(tensors_of(rounded), tensors_of(wide), magnitudes)
    unit = roundoff(case)
    scale = 2.0**-29 if case.torch_dtype == torch.float64 else 1.0
    worst = max(errors[name] / size for name, size in sizes.items() if size) if rounds_anew(case) else 0.0
    bounds = {
        name: SAMPLES * scale * max(errors[name], worst * size) + STEPS_FACTOR * (case.world_size + 1) * unit * size
        for name, size in sizes.items()
    }
    bounds["loss"] = bounds.get("losses", 0.0)
    return lambda path, want: bounds.get(last_key(path), 0.0)


def rounds_anew(case: Situation) -> bool:
    """Whether ranks compute in other steps than the oracle: by tensor parallelism, or by a device's kernels."""
    return case.data_ranks < case.world_size or device_type() != "cpu"


def roundoff(case: Situation) -> float:
    """The unit roundoff of the coarsest dtype."""
    return max(torch.finfo(dtype).eps / 2 for dtype in case.rounds_in)


def measured(near: Named, far: Named, magnitudes: Named) -> tuple[dict[str, float], dict[str, float]]:
    """By name, the largest difference between ``near`` and ``far``, and the largest value of ``far`` and magnitudes."""
    errors: dict[str, float] = defaultdict(float)
    sizes: dict[str, float] = defaultdict(float)
    for (name, one), (_, other) in zip(near, far, strict=True):
        errors[name] = max(errors[name], _most(one.double() - other.double()))
        sizes[name] = max(sizes[name], _most(other))
    for name, magnitude in [*magnitudes, ("losses", torch.ones(()))]:
        sizes[name] = max(sizes[name], _most(magnitude))
    return errors, sizes


def last_key(path: str) -> str:
    """The key that ends a path in a trace: ``bias`` of ``'gradients' 'bias'[0]``."""
    return str(re.findall(r"'([^']*)'", path)[-1])


def tensors_of(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All floating tensors of a tree with the last key on the way to each."""
    if isinstance(tree, Tensor):
        yield from [(name, tree)] if tree.is_floating_point() else []
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from tensors_of(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from tensors_of(value, name)


def _most(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0


def expected(case: Situation) -> Expected:
    """The same for the same case: both worlds ask."""
    return _expected(case, averages(), device_type())


@lru_cache(maxsize=64)
def _expected(case: Situation, averages: bool, device: str) -> Expected:
    return Expected(case)
