"""Registration: which parameter objects a net hands out, what memory is behind them, and what users may do to them."""

from __future__ import annotations

from typing import Any

from hypothesis import example

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack, TrainingCase
from suites.kit.registered import after, forms_of, unshard_all
from suites.kit.strategies import cases_of, given
from suites.oracle import judging
from suites.oracle.expected import Expected
from suites.oracle.judging import finds
from suites.parameters import registration
from suites.parameters.registration import DTYPES, DtypeCase, dtype_cases
from suites.passes.pass_programs import follows
from suites.passes.pass_routes import PICTURES
from suites.passes.pass_strategies import in_each_way, pass_cases
from suites.passes.passes import UnshardedWalk, Walk

SHARDED = Feature.FULLY_SHARD
#: Weights that have been stepped on are gathered after they were another dtype's.
WIDENED_BETWEEN = DtypeCase(
    2, Stack(2, ("linear", "linear")), exact=True, steps=3, batch=2, dtypes=("float32",) * 3, by_way_of="float64"
)


# Explicit unsharding.


@requirement("registration/unshard-waits", SHARDED, ranks=2)
@given(case=pass_cases())
def test_unshard_gives_a_handle_if_asked_to(trial: Trial, case: TrainingCase) -> None:
    """unshard(async_op=True) gives a handle whose wait() registers full parameters; without, they are so on return."""

    def full(number: int) -> Any:
        return forms_of(case, number, root=False, children=False)

    begun = ["begin", *(f"begin {place}" for place in case.sharded)]
    finds(trial, after, case, full, *begun, "wait")
    finds(trial, after, case, full, *begun, "wait", "reshard", *unshard_all(case))


@requirement("registration/unwaited", SHARDED, ranks=2)
@given(case=pass_cases())
def test_forward_waits_for_gathers_that_nobody_waited_for(trial: Trial, case: TrainingCase) -> None:
    """After unshard(async_op=True) whose handle was not waited for, a pass gives the unsharded model's results."""
    follows(trial, case, registration.UNWAITED)


@requirement("registration/repeated", SHARDED, Feature.CUSTOM_COLLECTIVES, Feature.ONE_MESSAGE, ranks=2)
@given(case=pass_cases())
def test_repeated_unshard_wait_and_reshard_do_nothing(trial: Trial, case: TrainingCase) -> None:
    """unshard() while gathering or gathered starts no new gather, and a second wait() or reshard() changes nothing."""
    gathers = [*[1] * len(case.sharded), int(len(case.sharded) < len(case.net.blocks))]
    for number, got in enumerate(trial.run(registration.repeated, case)):
        full, rows = (forms_of(case, number, root=sharded, children=sharded) for sharded in (False, True))
        want = {"unsharded": {"gathers": gathers, "facts": full}, "resharded": {"gathers": gathers, "facts": rows}}
        trial.agree(f"rank {number}", got, want)


@requirement("registration/resharded-between", SHARDED, ranks=2)
@given(case=pass_cases())
def test_resharding_between_forward_and_backward_changes_no_result(trial: Trial, case: TrainingCase) -> None:
    """Explicit resharding and unsharding between forward and backward leaves what autograd saved as it was."""
    follows(trial, case, registration.RESHARDED_BETWEEN)


# Objects and memory.


@requirement("registration/same-objects", SHARDED, Feature.PLAIN_FORWARD, ranks=2)
@given(case=pass_cases())
def test_sharded_parameters_are_the_same_objects_in_every_step(trial: Trial, case: TrainingCase) -> None:
    """The registered sharded parameters are the same objects after every forward, backward and optimizer step."""
    for number, got in enumerate(trial.run(registration.same_objects, case)):
        trial.agree(f"rank {number}", got, {when: dict.fromkeys(case.parameter_names, True) for when in got})


@requirement("registration/gradient-layouts", SHARDED, Feature.DTENSORS, ranks=2)
@given(case=pass_cases())
def test_gradients_lie_as_their_parameters_do(trial: Trial, case: TrainingCase) -> None:
    """A gradient has the mesh, placements, global and local size, and dtype of its parameter."""
    finds(trial, registration.gradient_layouts, case, lambda number: case.layouts(number, *registration.GRADIENT))


@requirement("registration/hooks-before", SHARDED, ranks=2, level="should")
@given(case=pass_cases())
def test_hooks_find_full_parameters(trial: Trial, case: TrainingCase) -> None:
    """Forward pre-hooks, and forward hooks registered before fully_shard, find the module's full parameters."""
    moments = ("after forward, registered first", "before forward, registered first", "before forward, registered last")
    for number, got in enumerate(trial.run(registration.seen_by_hooks, case)):
        full = dict(sorted(forms_of(case, number, root=False, children=False).items()))
        trial.agree(f"rank {number}", got, dict.fromkeys(moments, full))


@requirement("registration/leaves", SHARDED, Feature.PLAIN_FORWARD, ranks=2, level="should")
@given(case=pass_cases())
def test_layers_run_with_parameters_that_are_leaves(trial: Trial, case: TrainingCase) -> None:
    """What a layer runs with are nn.Parameters, leaves of autograd, that need gradients as the original ones did."""
    finds(trial, registration.seen_by_layers, case, {name: [True] * 3 for name in case.parameter_names})


@requirement("registration/frees-what-autograd-saved", SHARDED, ranks=2)
@given(case=pass_cases())
def test_resharding_frees_memory_that_autograd_refers_to(trial: Trial, case: TrainingCase) -> None:
    """When resharded, full parameters hold no memory, even while autograd has saved them for a backward to come."""
    nothing = dict.fromkeys(case.parameter_names, 0)
    finds(trial, registration.memory_saved_by_autograd, case, {"before backward": nothing, "after": nothing})


# What users do.


@requirement("registration/edits", SHARDED, ranks=2)
@in_each_way("parameter", "data", "local", steps=3)
def test_edits_of_sharded_parameters_are_seen_by_the_next_forward(trial: Trial, case: TrainingCase) -> None:
    """In-place changes of registered sharded parameters, or of their local parts, are in the next forward."""
    follows(trial, case, registration.EDITED)


@requirement("registration/own-setattr", SHARDED, Feature.PLAIN_FORWARD, ranks=2)
@given(case=pass_cases(plain=True))
def test_classes_may_keep_parameters_in_a_second_place(trial: Trial, case: TrainingCase) -> None:
    """A class whose __setattr__ puts parameters into a list, too, runs with what is registered, and trains right."""
    follows(trial, case, registration.KEPT_TWICE)


@requirement("registration/replaced", SHARDED, Feature.STATE_DICT, ranks=2)
@in_each_way("load", "assign", "setattr")
def test_parameters_replaced_before_the_first_forward_are_used(trial: Trial, case: TrainingCase) -> None:
    """Parameters loaded, assigned or set after fully_shard and before the first forward are those it runs with."""
    follows(trial, case, registration.REPLACED)


@requirement("registration/converted-first", SHARDED, Feature.CONVERSION, ranks=2)
@given(case=dtype_cases("first"))
def test_a_net_may_be_converted_before_the_first_forward(trial: Trial, case: DtypeCase) -> None:
    """After to(dtype) of a sharded net, parameters and gradients have that dtype, and training is as unsharded."""
    follows(trial, case, registration.CONVERTED)


@requirement("registration/converted-and-back", SHARDED, Feature.CONVERSION, ranks=2)
@example(case=WIDENED_BETWEEN)
@given(case=dtype_cases("and back"))
def test_a_net_may_be_converted_and_converted_back_between_steps(trial: Trial, case: DtypeCase) -> None:
    """Between steps a sharded net may be converted to another dtype and back, and trains on as the unsharded does."""
    follows(trial, case, registration.CONVERTED)


@requirement("registration/converted-for-good", SHARDED, Feature.CONVERSION, level="should", ranks=2)
@given(case=dtype_cases("for good"))
def test_a_net_may_be_converted_between_steps(trial: Trial, case: DtypeCase) -> None:
    """Between steps a sharded net may be converted to another dtype, and trains on in that as the unsharded does."""
    follows(trial, case, registration.CONVERTED)


@requirement("registration/memory-format", SHARDED, Feature.CONVERSION, level="should", ranks=2)
@given(case=pass_cases(plain=True, dim=2, plan=(0,), world_size=2, steps=2))
def test_a_sharded_net_may_have_another_memory_format(trial: Trial, case: TrainingCase) -> None:
    """After to(memory_format=channels_last) a sharded net trains as the unsharded one does."""
    follows(trial, case, PICTURES)


@requirement("registration/converted-under-policy", SHARDED, Feature.CONVERSION, Feature.MIXED_PRECISION, ranks=2)
@given(case=cases_of(DtypeCase, dtype_cases("first"), computes=DTYPES))
def test_a_conversion_before_the_first_forward_keeps_the_policy(trial: Trial, case: DtypeCase) -> None:
    """After to(dtype) before the first forward, the net computes in the policy's dtype; gradients have the new one."""
    want = Expected(Walk.of(case, registration.CONVERTED), UnshardedWalk)
    for found in [found for seen in want.wide for found in seen["found"] if found]:
        found["outputs"] = f"torch.{case.computes}"
    judging.follows(trial, registration.converted_under_policy, want, case, registration.CONVERTED)


@requirement("registration/layer-by-layer", SHARDED, ranks=2)
def test_layers_may_be_sharded_while_the_net_is_built(trial: Trial) -> None:
    """Layers that are built and sharded one by one, so that memory is used again, are not taken for shared ones."""
    case = TrainingCase(world_size=2, net=Stack(dim=2, blocks=("linear",) * 12), dtype="float64", exact=True, steps=1)
    judging.follows(trial, registration.BuiltInLayers.play, Expected(case))
