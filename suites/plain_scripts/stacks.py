"""Scripts of cases on a ``Stack``: training in its variants, and where parameters and state dicts lie.

They build the very net of the case, with the numbers of its seed, and train it sharded and unsharded side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from harness.reproduce.script import Code, code
from suites.gradients.accumulation import AccumulationCase
from suites.kit.cases import Reshard, Stack, TrainingCase
from suites.kit.precision import FRACTION, SCALE, PrecisionCase, RoundingCase
from suites.oracle.expected import expected
from suites.parameters.empties import EmptyCase
from suites.plain_scripts.filling import MOST, Family, Filling, check, check_sizes, dtype_of, modules, sequential

SHARD, SYNC = "fully_shard", "set_requires_gradient_sync"
IMPORTS = "datetime, functools, sys, tempfile"


def common(case: TrainingCase) -> dict[str, Any]:
    """The values that every template of this file needs. Raises ValueError for a case that the suites do not draw."""
    check_stack(case)
    names = Code(', mesh_dim_names=("replicate", "shard")' if case.mesh else "")
    return {
        "standard": Code(IMPORTS),
        "dtype": dtype_of(case.dtype),
        "mesh": code("dist.init_device_mesh(DEVICE, {}{})", case.mesh or (case.world_size,), names),
        "net": sequential([layer(case.net, block) for block in case.net.blocks]),
        "modules": modules("net", case.sharded),
        "adds": "buffer" in case.net.blocks,
        "allowed": 0,
        "most_ranks": case.world_size,
        "runs": [(Code("on_rank"), case.world_size)],
    }


def check_stack(case: TrainingCase) -> None:
    """Raise ValueError if the net, the sharded blocks or the mesh are none that the suites draw."""
    check_sizes(case.world_size, case.net.dim, case.net.multiplier, case.batch, case.steps, len(case.net.blocks))
    check(type(case.net) is Stack, "a Stack as its net")
    check(all(0 <= place <= len(case.net.blocks) for place in case.sharded), "blocks that there are as sharded ones")
    two_axes = len(case.mesh) == 2 and min(case.mesh) > 0 and case.mesh[0] * case.mesh[1] == case.world_size
    check(two_axes or case.mesh == (), "a mesh of its ranks")


def layer(net: Stack, block: str) -> Code:
    """One block as Python; what is nested in the case is one flat ``Sequential`` of the same parameters in order."""
    hidden, bias = net.multiplier * net.dim, Code("" if net.bias else ", False")
    up, down = code("nn.Linear({}, {}{})", net.dim, hidden, bias), code("nn.Linear({}, {}{})", hidden, net.dim, bias)
    linear = code("nn.Linear({}, {}{})", net.dim, net.dim, bias)
    after = {"nested": [linear], "buffer": [code("Add(nn.Buffer(torch.empty({})))", net.dim)]}.get(block, [])
    return linear if block == "linear" else Code(f"nn.Sequential({', '.join([up, 'nn.ReLU()', down, *after])})")


def largest_bound(case: TrainingCase) -> float:
    """The largest difference from the unsharded net in float64 that the suite allows; 0 for exact cases."""
    if case.exact:
        return 0.0
    want = expected(case)
    names = ["loss", *want.whole[0]["gradients"]]
    return max(float(want.within(f"{name!r}", torch.empty(0))) for name in names)


# Training.


def training(case: TrainingCase, pin_memory: bool | None = None) -> Filling:
    """Some steps of SGD; with CPU offload unless ``pin_memory`` is None."""
    values = {**common(case), "allowed": largest_bound(case), **offload(pin_memory)}
    if isinstance(case, EmptyCase):
        check(0 in case.shape and max(case.shape) <= MOST and min(case.shape) >= 0, "a shape without elements")
        empty = code("Add(nn.Parameter(torch.empty({})))", case.shape)
        values |= {"adds": True, "net": sequential([*map(partial(layer, case.net), case.net.blocks), empty])}
    return Filling("training.py.j2", uses(pin_memory), values)


def offload(pin_memory: bool | None) -> dict[str, Any]:
    """The values for CPU offload, if there is any."""
    return {"pin_memory": pin_memory, "offload": Code("" if pin_memory is None else ", offload_policy=offload")}


def uses(pin_memory: bool | None, *more: str) -> tuple[str, ...]:
    """The names that are imported from the subject."""
    return (*([] if pin_memory is None else ["CPUOffloadPolicy"]), *more, SHARD)


def precision(case: PrecisionCase, pin_memory: bool | None = None) -> Filling:
    """Training in mixed precision: the unsharded net computes and reduces in the same dtypes by explicit casts."""
    values = {
        **common(case),
        "standard": Code(f"copy, {IMPORTS}"),
        **offload(pin_memory),
        "param_dtype": case.param_dtype and dtype_of(case.param_dtype),
        "reduce_dtype": case.reduce_dtype and dtype_of(case.reduce_dtype),
        "compute": case.compute,
        "reduce": case.reduction,
        "fraction": FRACTION if case.is_low and not case.born else 0.0,
    }
    if case.born:
        values["born"] = dtype_of(case.born)
    if isinstance(case, RoundingCase):
        scales = {case.large: SCALE, case.small: 1.0}
        values["scales"] = [scales.get(rank, 0.0) for rank in range(case.world_size)]
    return Filling("precision.py.j2", uses(pin_memory, "MixedPrecisionPolicy"), values)


def accumulation(case: AccumulationCase, switch: str = "") -> Filling:
    """Some micro-batches a step; ``switch`` is the method that says before each one whether it is the last."""
    check_sizes(case.micro, len(case.kept))
    quiet = ("all", "root", "none", "replicas")
    check(case.quiet in quiet or (case.quiet == "some" and case.sharded != ()), f"some or one of {quiet} as quiet")
    last, synced = code("part == {}", case.micro - 1), switch == SYNC
    net = code("net[{}]", case.sharded[0]) if synced and case.quiet == "some" else Code("net")
    alone = Code(", recurse=False" if synced and case.quiet == "root" else "")
    return Filling("accumulation.py.j2", (SHARD,), {
        **common(case),
        "switched": code("{}.{}({}{})", net, Code(switch), last, alone) if switch else None,
        "early": gradients_at_once(case) if synced else None,
        "kept": [step for step in range(case.steps) if case.is_kept(step)],
    })  # fmt: skip


def gradients_at_once(case: AccumulationCase) -> list[int]:
    """For each parameter 1 if it is reduced with every micro-batch, and so has a gradient after the first, else 0."""
    quiet = "".join(setting.partition(" in ")[2] for setting in case.switched())
    return [int(quiet not in ("", case.unit_of(name))) for name, _ in case.build().named_parameters()]


# Where parameters and entries of state dicts lie.

Form = Literal["sharded", "full", "after forward", "full at the root"]


@dataclass(frozen=True)
class State:
    """Actions on a sharded net, and then the entries that are compared, with the form that they must have.

    ``acts`` are "forward", "forward without gradients", "backward", "state_dict", "load" (the values of another seed),
    "unshard the root", or a method of every sharded module. ``look`` is "state_dict", "parameters" or "outputs".
    """

    acts: tuple[str, ...] = ()
    look: str = "state_dict"
    form: Form = "sharded"

    def __call__(self, case: TrainingCase) -> Filling:
        """The script of one case."""
        values = common(case)
        root, block = forms(case, self.form)
        return Filling("state.py.j2", (SHARD,), {
            **values,
            "acts": list(map(Code, self.acts)),
            "look": self.look,
            "others_modules": modules("other", case.sharded),
            "seed": case.seed + ("load" in self.acts),
            "root_parts": root,
            "block_parts": block,
        })  # fmt: skip


def forms(case: TrainingCase, form: Form) -> tuple[int | None, int | None]:
    """In how many parts parameters of the root and of sharded blocks are cut; None for plain tensors in full."""
    if form == "after forward":
        return after_forward(case)
    root, block = form == "sharded", form in ("sharded", "full at the root")
    return (case.shards if root else None), (case.shards if block else None)


def after_forward(case: TrainingCase) -> tuple[int | None, int | None]:
    """The same between forward and backward, as ``reshard_after_forward`` says."""
    setting: Reshard = case.reshard_after_forward
    if setting is None:
        return None, case.shards
    if type(setting) is int and setting > 1:
        return setting, setting
    parts = case.shards if setting is True else None
    return parts, parts


PLAIN = Family(TrainingCase, training)
OFFLOADED = Family(TrainingCase, partial(training, pin_memory=False))
ROUNDED = Family(RoundingCase, precision)
QUIET = Family(AccumulationCase, partial(accumulation, switch=SYNC))
TRAINING = {
    "parity/exact": PLAIN,
    "parity/general": PLAIN,
    "parity/to-group": PLAIN,
    "hsdp/exact": PLAIN,
    "hsdp/general": PLAIN,
    "hsdp/replicas-stay-equal": PLAIN,
    "reduction/one-rank": PLAIN,
    "sharding/zero-elements": Family(EmptyCase, training),
    "offload/exact": OFFLOADED,
    "offload/hsdp": OFFLOADED,
    "offload/pinned": Family(TrainingCase, partial(training, pin_memory=True)),
    "offload/mixed-precision": Family(PrecisionCase, partial(precision, pin_memory=False)),
    "precision/exact": Family(PrecisionCase, precision),
    "precision/reduce-dtype": ROUNDED,
    "precision/hsdp": ROUNDED,
    "accumulation/quiet": QUIET,
    "accumulation/quiet-root": QUIET,
    "accumulation/quiet-block": QUIET,
    "accumulation/hsdp": QUIET,
    "accumulation/hsdp-scatters": Family(AccumulationCase, partial(accumulation, switch="set_requires_all_reduce")),
    "accumulation/loud": Family(AccumulationCase, accumulation),
}

FORWARD = State(("forward",), "parameters", "after forward")
TRAINED = State(("forward", "backward"), "parameters")
KEPT = State(("set_reshard_after_backward(False)", "forward", "backward"), "parameters", "full")
STATES = {
    "hsdp/layout": State(look="parameters"),
    "hsdp/rows": State(look="parameters"),
    "reshard/true": FORWARD,
    "reshard/false": FORWARD,
    "reshard/default": FORWARD,
    "reshard/to-group": FORWARD,
    "reshard/to-one-or-all": FORWARD,
    "reshard/without-gradients": State(("forward without gradients",), "parameters", "after forward"),
    "reshard/after-backward": TRAINED,
    "reshard/to-group-after-backward": TRAINED,
    "reshard/kept-after-backward": KEPT,
    "reshard/by-hand": State(("forward without gradients", "reshard()"), "parameters"),
    "reshard/unshard": State(("unshard the root",), "parameters", "full at the root"),
    "reshard/undoes-unshard": State(("unshard()", "reshard()"), "parameters"),
    "state-dict/keys": State(),
    "state-dict/values": State(),
    "state-dict/hsdp-values": State(),
    "state-dict/leaves-sharded": State(("state_dict",), "parameters"),
    "state-dict/after-forward": State(("forward",)),
    "state-dict/reshards": State(("forward", "state_dict"), "parameters"),
    "state-dict/after-unshard": State(("unshard()",)),
    "state-dict/load": State(("load",)),
    "state-dict/hsdp-load": State(("load",)),
    "state-dict/load-after-forward": State(("forward", "load")),
    "state-dict/forward-after-load": State(("forward", "load", "forward"), "outputs"),
}
FAMILIES = {**TRAINING, **{requirement: Family(TrainingCase, state) for requirement, state in STATES.items()}}
