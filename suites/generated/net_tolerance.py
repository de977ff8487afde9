"""How far training of any net may be off: a bound that each net derives for itself.

[Note: generated nets]
The oracle is the unsharded model in float64. A net of norms and attention may magnify a rounding a thousandfold, or
not at all, so no constant fits all. Let e be the error of the unsharded model in float32, whose unit roundoff is
v = 2**-24: then e / v says by how much this very net, with these numbers, magnifies roundings of its own. In a dtype of
unit roundoff u it does so as much. Sharding adds roundings of the mean over n ranks, at most (n + 1) · u · m with m the
mean of absolute values, which go the same way through the steps that follow (see general cases in ``tolerance.py``,
where the factors come from)::

    allowed = (FACTOR · max(e) / v + STEPS_FACTOR · (n + 1) · max(m)) · u

with maxima over each parameter, buffer or loss and all steps.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from harness.data.comparison import Allowance
from suites.generated import net_baseline
from suites.generated.net_baseline import NetStep
from suites.generated.net_cases import GeneratedCase
from suites.kit.tolerance import FACTOR, STEPS_FACTOR

V = torch.finfo(torch.float32).eps / 2
#: Tensors and what they are called; one name may come several times.
Named = Iterable[tuple[str, Tensor]]


def allowed(case: GeneratedCase, oracle: list[NetStep]) -> Allowance:
    """What each part of a trace may differ from the float64 ``oracle``."""
    rounded = net_baseline.train(case, torch.float32)
    near, far = (chain.from_iterable(map(_named, steps)) for steps in (rounded, oracle))
    return magnified(case, near, far, (pair for step in oracle for pair in step.magnitudes.items()))


def magnified(case: GeneratedCase, near: Named, far: Named, magnitudes: Named) -> Allowance:
    """The bound of the note from all tensors in float32 and float64, under the names that end their paths in a trace.

    ``magnitudes`` count among the sizes m only.
    """
    errors, sizes = measured(near, far, magnitudes)
    u = torch.finfo(case.torch_dtype).eps / 2

    def allowance(path: str, want: Tensor) -> float:
        name = last_key(path)
        return (FACTOR * errors[name] / V + STEPS_FACTOR * (case.world_size + 1) * sizes[name]) * u

    return allowance


def measured(near: Named, far: Named, magnitudes: Named) -> tuple[dict[str, float], dict[str, float]]:
    """By name, the largest difference between ``near`` and ``far``, and the largest value of ``far`` and magnitudes."""
    errors: dict[str, float] = defaultdict(float)
    sizes: dict[str, float] = defaultdict(float)
    for (name, one), (_, other) in zip(near, far, strict=True):
        errors[name] = max(errors[name], _most(one.double() - other.double()))
        sizes[name] = max(sizes[name], _most(other))
    for name, magnitude in magnitudes:
        sizes[name] = max(sizes[name], _most(magnitude))
    return errors, sizes


def last_key(path: str) -> str:
    """The key that ends a path in a trace: ``bias`` of ``'gradients' 'bias'[0]``."""
    return str(re.findall(r"'([^']*)'", path)[-1])


def _named(step: NetStep) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a step, under the names that a trace gives them."""
    yield from (("losses", loss) for losses in step.losses for loss in losses)
    yield from ((name, gradient) for name, gradient in step.gradients.items() if gradient is not None)
    yield from step.parameters.items()
    yield from ((name, buffer) for buffers in step.buffers for name, buffer in buffers.items())


def _most(tensor: Tensor) -> float:
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0
