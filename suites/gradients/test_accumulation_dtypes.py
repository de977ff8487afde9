"""Gradient accumulation in several dtypes: in which of them micro-batches add up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import example
from hypothesis import strategies as st

from harness.requirement import requirement
from harness.trial import Trial
from harness.vendor import Feature
from suites.communication.played import play
from suites.gradients.accumulation import REPLICAS, WAITING_FOR_REPLICAS, WideStack, fine
from suites.kit.cases import Stack
from suites.kit.precision import PrecisionCase
from suites.kit.precision_programs import LOW, precision_cases
from suites.kit.strategies import costly, examples, given
from suites.oracle.expected import expected
from suites.oracle.judging import follows

ADDING = (Feature.FULLY_SHARD, Feature.ACCUMULATION)
FINE = PrecisionCase(2, Stack(1, ("linear",), 1, bias=False), exact=True, seed=1, batch=1)


@requirement("accumulation/reduce-dtype", *ADDING, Feature.MIXED_PRECISION, ranks=2)
@costly(2)
@examples(fine(replace(FINE, param_dtype="bfloat16", reduce_dtype="float32"), kept) for kept in (False, True))
@given(case=st.builds(fine, precision_cases(bias=False, steps=1, pairs=[("bfloat16", "float32")]), st.booleans()))
def test_gradients_add_up_in_the_reduce_dtype(trial: Trial, case: PrecisionCase) -> None:
    """Gradients computed in low precision are added up over micro-batches in reduce_dtype, without rounding."""
    follows(trial, play, expected(case))


@requirement("accumulation/low-reduce-dtype", Feature.FULLY_SHARD, Feature.MIXED_PRECISION, ranks=2)
@costly(2)
@example(case=fine(replace(FINE, reduce_dtype="bfloat16"), reduced=True))
@given(case=precision_cases(bias=False, steps=1, pairs=[(None, "bfloat16")]).map(partial(fine, reduced=True)))
def test_gradients_that_were_reduced_in_a_low_dtype_add_up_in_their_own(trial: Trial, case: PrecisionCase) -> None:
    """Micro-batches that are each reduced in a low reduce_dtype are added up in the dtype of parameters."""
    follows(trial, play, expected(case))


@requirement("accumulation/hsdp-half", *ADDING, Feature.HSDP, Feature.MIXED_PRECISION, ranks=2)
@costly(2)
@examples(replace(FINE, reduce_dtype="float16", mesh=mesh, world_size=2 * mesh[1]) for mesh in ((2, 1), (2, 2)))
@given(case=precision_cases(bias=False, steps=1, pairs=[(None, "float16")], **REPLICAS))
def test_what_waits_for_replicas_in_half_precision_counts_in_full(trial: Trial, case: PrecisionCase) -> None:
    """Micro-batches whose sums in float16 wait for an all-reduce with the last one count as much as that."""
    follows(trial, play, expected(replace(case, acts=WAITING_FOR_REPLICAS)))


@requirement("accumulation/grad-dtype", *ADDING, Feature.OTHER_DTYPES, ranks=2)
@costly(2)
@example(case=fine(replace(FINE, dtype="bfloat16")))
@given(case=precision_cases(bias=False, steps=1, pairs=[(None, None)], dtype=st.sampled_from(LOW)).map(fine))
def test_gradients_have_the_dtype_that_is_asked_for(trial: Trial, case: PrecisionCase) -> None:
    """Parameters in low precision whose grad_dtype is float32 have gradients in it, added up and reduced unrounded."""
    follows(trial, WideStack.play, expected(case))
