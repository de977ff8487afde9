"""CPU offload: parameters, gradients and optimizer state rest on the CPU, and training is what it was."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.kit.cases import Stack, TrainingCase
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import precision_cases
from suites.kit.strategies import given
from suites.oracle.expected import expected
from suites.oracle.judging import follows
from suites.oracle.situation import PASS, STEP
from suites.scenarios import sharding
from suites.scenarios.scenario import Scenario
from suites.training import offloading
from suites.training.offloading import (
    Offloaded,
    OffloadedElsewhere,
    OffloadedFromMeta,
    Pinned,
    plain_cases,
    replicated_cases,
)

OFFLOAD = (Feature.FULLY_SHARD, Feature.CPU_OFFLOAD)
PINNED = ("pinned memory",)
FIXED = TrainingCase(2, Stack(3, ("mlp", "linear")), (0,), "float64", exact=True)


ROWS = st.sampled_from(["even", "uneven", "fewer"])


@requirement("offload/exact", *OFFLOAD, ranks=2)
@example(case=FIXED)
@given(case=plain_cases)
def test_training_with_offload_equals_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """With parameters that rest on the CPU training is the unsharded model's, gradients complete after backward."""
    follows(trial, Offloaded.play, expected(case))


@requirement("offload/pinned", *OFFLOAD, ranks=2, limits=PINNED)
@given(case=plain_cases)
def test_training_with_pinned_memory_equals_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """With pinned memory training is the unsharded model's, and gradients are complete when backward returns."""
    follows(trial, Pinned.play, expected(case))


@requirement("offload/hsdp", *OFFLOAD, Feature.HSDP, ranks=2)
@example(case=replace(FIXED, world_size=4, mesh=(2, 2)))
@given(case=replicated_cases)
def test_hybrid_training_with_offload_equals_the_unsharded_model(trial: Trial, case: TrainingCase) -> None:
    """On replicas of shards that rest on the CPU training is the unsharded model's."""
    follows(trial, Offloaded.play, expected(case))


@requirement("offload/mixed-precision", *OFFLOAD, Feature.MIXED_PRECISION, ranks=2)
@example(case=PrecisionCase(2, Stack(3, ("linear",)), exact=True, steps=1, param_dtype="bfloat16"))
@given(case=precision_cases())
def test_offload_and_mixed_precision_go_together(trial: Trial, case: PrecisionCase) -> None:
    """What rests on the CPU in full precision computes in low precision as it would without offload."""
    follows(trial, Offloaded.play, expected(case))


@requirement("offload/written", *OFFLOAD, Feature.MIXED_PRECISION, ranks=2)
@given(case=precision_cases(pairs=[("bfloat16", None)], acts=(*PASS, "drop", "negate ", *STEP)))
def test_what_is_written_into_parameters_on_the_cpu_is_seen(trial: Trial, case: PrecisionCase) -> None:
    """What is written into parameters on the CPU, as by collectives, of which autograd is not told, is used next."""
    follows(trial, Offloaded.play, expected(case))


@requirement("offload/from-meta", *OFFLOAD, Feature.META_DEVICE, ranks=2)
@given(case=plain_cases)
def test_a_net_from_the_meta_device_is_offloaded(trial: Trial, case: TrainingCase) -> None:
    """A net that is sharded without memory, and given memory on the CPU, trains as the unsharded model does."""
    follows(trial, OffloadedFromMeta.play, expected(case))


@requirement("offload/update-in-backward", *OFFLOAD, ranks=2)
@example(case=Scenario(update="hooks", offload="cpu"))
@given(case=st.builds(Scenario, update=st.just("hooks"), offload=st.just("cpu"), rows=ROWS, seed=st.integers(0, 99)))
def test_hooks_see_finished_gradients(trial: Trial, case: Scenario) -> None:
    """Hooks that run when a parameter has its gradient find it complete, so that they can update the parameter."""
    follows(trial, sharding.play, expected(case))


@requirement("offload/resting-places", *OFFLOAD, ranks=2)
@given(case=plain_cases)
def test_what_rests_lies_on_the_cpu(trial: Trial, case: TrainingCase) -> None:
    """Parameters, gradients, optimizer state and state dict lie on the CPU; layers run on the device of the rank."""
    rests_on_the_cpu(trial, case)


@requirement("offload/replicas", Feature.REPLICATE_FSDP, Feature.CPU_OFFLOAD, ranks=2)
@given(case=plain_cases)
def test_what_rests_of_replicas_lies_on_the_cpu(trial: Trial, case: TrainingCase) -> None:
    """What rests of a net that replicate offloads lies on the CPU; layers run on the device of the rank."""
    rests_on_the_cpu(trial, case, offloading.OffloadedReplicas)


@requirement("offload/pinned-memory", *OFFLOAD, ranks=2, limits=PINNED)
@given(case=plain_cases)
def test_pinned_memory_is_pinned(trial: Trial, case: TrainingCase) -> None:
    """With pin_memory the parameters and their gradients rest in page-locked memory."""
    for number, got in enumerate(trial.run(offloading.pinned_parts, case)):
        trial.agree(f"rank {number}, pinned", got, dict.fromkeys(got, True))


@requirement("offload/refuses-other-devices", *OFFLOAD, Feature.META_DEVICE, limits=("second device type",))
def test_memory_on_another_device_is_refused(trial: Trial) -> None:
    """A forward with offload whose parameters were given memory elsewhere than on the CPU raises an error."""
    trial.refuses(OffloadedElsewhere.play, FIXED, "offload", "offloading", "CPUOffloadPolicy", "to_empty")


@requirement("offload/policies", *OFFLOAD)
def test_the_policies_mean_what_their_names_say(trial: Trial) -> None:
    """OffloadPolicy() leaves parameters on the device; CPUOffloadPolicy is a kind of it, and pins memory by default."""
    for number, got in enumerate(trial.run(offloading.defaults, FIXED)):
        trial.agree(f"rank {number}", got, dict.fromkeys(got, True))


def rests_on_the_cpu(trial: Trial, case: TrainingCase, kind: type[Offloaded] = Offloaded) -> None:
    """Require of each rank that what rests is on the CPU, and what runs on its device."""
    named = [name for name, _ in case.build().named_parameters()]
    for number, got in enumerate(trial.run(offloading.resting_places, case, kind)):
        here = got["the rank"]
        places = {what: dict.fromkeys(named, here["device"] if what == "running" else "cpu") for what in got}
        trial.agree(f"rank {number}", got, {**places, "the rank": here})
