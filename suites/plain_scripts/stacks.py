"""Scripts of cases on a ``Stack``: training in its variants, and where parameters and state dicts lie.

They build the very net of the case, with the numbers of its seed, and train it sharded and unsharded side by side.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch

from harness.reproduce.script import Code, code
from suites.gradients.accumulation import AccumulationCase
from suites.kit.cases import Reshard, Stack, TrainingCase
from suites.kit.precision import FRACTION, SCALE, PrecisionCase
from suites.oracle.expected import expected
from suites.parameters.empties import EmptyCase
from suites.plain_scripts.filling import MOST, Family, Filling, check, check_sizes, dtype_of, modules, sequential, shown

SHARD, SYNC = "fully_shard", "set_requires_gradient_sync"
IMPORTS = "datetime, functools, sys, tempfile"
Form = Literal["sharded", "full", "after forward", "full at the root"]


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
    check(type(case.net) is Stack and not case.net.frozen, "a Stack as its net, of which all trains")
    check(not case.acts, "steps of training")
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
    """Some steps of SGD, in mixed precision if the case is of that; with CPU offload unless ``pin_memory`` is None."""
    offload = Code("" if pin_memory is None else ", offload_policy=offload")
    values = {**common(case), "allowed": largest_bound(case), "pin_memory": pin_memory, "offload": offload}
    policies = () if pin_memory is None else ("CPUOffloadPolicy",)
    if isinstance(case, PrecisionCase):
        return Filling("precision.py.j2", (*policies, "MixedPrecisionPolicy", SHARD), {**values, **precision(case)})
    if isinstance(case, EmptyCase):
        check(0 in case.shape and max(case.shape) <= MOST and min(case.shape) >= 0, "a shape without elements")
        empty = code("Add(nn.Parameter(torch.empty({})))", case.shape)
        values |= {"adds": True, "net": sequential([*map(partial(layer, case.net), case.net.blocks), empty])}
    return Filling("training.py.j2", (*policies, SHARD), values)


def precision(case: PrecisionCase) -> dict[str, Any]:
    """The dtypes of mixed precision: the unsharded net computes and reduces in the same ones by explicit casts."""
    check(len(case.scales) in (0, case.world_size) and {*case.scales} <= {SCALE, 1.0, 0.0}, "the scales of its ranks")
    return {
        "standard": Code(f"copy, {IMPORTS}"),
        "param_dtype": case.param_dtype and dtype_of(case.param_dtype),
        "reduce_dtype": case.reduce_dtype and dtype_of(case.reduce_dtype),
        "compute": case.compute,
        "reduce": case.reduction,
        "fraction": FRACTION if case.is_low and not case.born else 0.0,
        **({"born": dtype_of(case.born)} if case.born else {}),
        **({"scales": list(case.scales)} if case.scales else {}),
    }


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
    return [int(quiet not in ("", case.group_of(name))) for name, _ in case.build().named_parameters()]


# Where parameters and entries of state dicts lie.


def state(case: TrainingCase, *acts: str, look: str = "state_dict", form: Form = "sharded") -> Filling:
    """Actions on a sharded net, and then the entries that are compared, with the form that they must have.

    ``acts`` are "forward", "forward without gradients", "backward", "state_dict", "load" (the values of another seed),
    "unshard the root", or a method of every sharded module. ``look`` is "state_dict", "parameters" or "outputs".
    """
    values = common(case)
    root, block = parts(case, form)
    return Filling("state.py.j2", (SHARD,), {
        **values,
        "acts": list(map(Code, acts)),
        "look": look,
        "others_modules": modules("other", case.sharded),
        "seed": case.seed + ("load" in acts),
        "root_parts": root,
        "block_parts": block,
    })  # fmt: skip


def parts(case: TrainingCase, form: Form) -> tuple[int | None, int | None]:
    """In how many parts parameters of the root and of sharded blocks are cut; None for plain tensors in full.

    Between forward and backward ``reshard_after_forward`` says it.
    """
    setting: Reshard = case.reshard_after_forward
    if form == "after forward" and type(setting) is int and setting > 1:
        return setting, setting
    root = form == "sharded" or (form == "after forward" and setting is True)
    block = root or form == "full at the root" or (form == "after forward" and setting is None)
    return (case.shards if root else None), (case.shards if block else None)


def states(*acts: str, **asked: Any) -> Family:
    """Requirements of what there is after these actions."""
    return Family(TrainingCase, lambda case: state(case, *acts, **asked))


LIES = {"look": "parameters"}
AFTER_FORWARD = {**LIES, "form": "after forward"}
UNSHARDED = {**LIES, "form": "full at the root"}
FAMILIES = {
    **shown(
        Family(TrainingCase, training),
        "parity: exact general to-group",
        "hsdp: exact general replicas-stay-equal",
        "reduction: one-rank",
    ),
    **shown(Family(TrainingCase, partial(training, pin_memory=False)), "offload: exact hsdp"),
    **shown(Family(TrainingCase, partial(training, pin_memory=True)), "offload: pinned"),
    **shown(Family(PrecisionCase, partial(training, pin_memory=False)), "offload: mixed-precision"),
    **shown(Family(PrecisionCase, training), "precision: exact reduce-dtype hsdp"),
    **shown(Family(EmptyCase, training), "sharding: zero-elements"),
    **shown(
        Family(AccumulationCase, partial(accumulation, switch=SYNC)), "accumulation: quiet quiet-root quiet-block hsdp"
    ),
    **shown(
        Family(AccumulationCase, partial(accumulation, switch="set_requires_all_reduce")), "accumulation: hsdp-scatters"
    ),
    **shown(Family(AccumulationCase, accumulation), "accumulation: loud"),
    **shown(states(**LIES), "hsdp: layout rows"),
    **shown(states("forward", **AFTER_FORWARD), "reshard: true false default to-group to-one-or-all"),
    **shown(states("forward without gradients", **AFTER_FORWARD), "reshard: without-gradients"),
    **shown(states("forward", "backward", **LIES), "reshard: after-backward to-group-after-backward"),
    **shown(
        states("set_reshard_after_backward(False)", "forward", "backward", look="parameters", form="full"),
        "reshard: kept-after-backward",
    ),
    **shown(states("forward without gradients", "reshard()", **LIES), "reshard: by-hand"),
    **shown(states("unshard the root", **UNSHARDED), "reshard: unshard"),
    **shown(states("unshard()", "reshard()", **LIES), "reshard: undoes-unshard"),
    **shown(states(), "state-dict: keys values hsdp-values"),
    **shown(states("state_dict", **LIES), "state-dict: leaves-sharded"),
    **shown(states("forward"), "state-dict: after-forward"),
    **shown(states("forward", "state_dict", **LIES), "state-dict: reshards"),
    **shown(states("unshard()"), "state-dict: after-unshard"),
    **shown(states("load"), "state-dict: load hsdp-load"),
    **shown(states("forward", "load"), "state-dict: load-after-forward"),
    **shown(states("forward", "load", "forward", look="outputs"), "state-dict: forward-after-load"),
}
