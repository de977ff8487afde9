"""No false blame: unusual but conforming subjects pass the requirements that might fail them by mistake.

``docs/evidence/conforming.md`` has the results of whole runs of the suites on the same subjects.
"""

from __future__ import annotations

import pytest

from harness.pytest_plugin.loaded_subject import LoadedSubject
from harness.records.record import Verdict
from harness.vendor import ON_CPUS, Backend, Feature
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.worlds.make import open_world
from tests.conforming.living import lived
from tests.mutation.judging import by_id, judged
from tests.patience import GUARD
from tests.worlds.helpers import TORCH_ON_GLOO

ADDS = ("parity/general", "reduction/half-range", "communication/backward", "events/reduced")
GATHERS = ("parity/exact", "registration/unwaited", "communication/forward", "events/waits")
TALKS = ("communication/forward", "communication/backward", "events/once", "checkpoint/no-more-collectives")
BYTES = ("collectives/all-gather-in-place", "communication/forward", "events/waits")
SUMS = ("collectives/average", "communication/backward", "events/replicas")
#: Each variant, and requirements that might take its deviation for a defect.
TRIED_BY = {
    "reductions:adds_in_reverse": ADDS,
    "reductions:adds_pairwise": ADDS,
    "reductions:adds_in_float64": ADDS,
    "reductions:always_sums": ("precision/general", "reduction/divide-factor-hsdp", "communication/hsdp"),
    "reductions:own_dtype": ("precision/hsdp", "precision/exact", "precision/groups", "precision/override"),
    "gathers:gathers_into_scratch": GATHERS,
    "gathers:gathers_at_once": GATHERS,
    "gathers:gathers_asynchronously": (*GATHERS, "prefetch/forward-order"),
    "gathers:unshards_at_once": ("registration/unwaited", "registration/repeated", "reshard/undoes-unshard"),
    "gathers:fills_with_nan": ("parity/exact", "sharding/rows", "generated/branches", "memory/in-forward"),
    "company:meets_first": TALKS,
    "company:makes_sure": TALKS,
    "company:agrees_at_first": ("accumulation/quiet", "reduction/sums", "parameter-mesh/accumulation"),
    "timing:gathers_ahead": ("events/ahead", "events/once", "prefetch/forward-order", "memory/in-forward"),
    "timing:frees_late": ("events/freed", "events/accumulation", "reshard/frees-memory", "memory/at-rest"),
    "timing:sums_anew": ("passes/second-backward", "accumulation/quiet", "autograd/post-accumulate-hooks"),
    "manners:collects": ("reshard/full-in-forward", "registration/hooks-before", "events/freed"),
    "manners:own_errors": ("refusals/twice", "reshard/refuses-sizes", "communication/refuses-resharding"),
    "manners:own_classes": ("entry/slices", "entry/given-back", "refusals/deepcopy"),
    "manners:plain_dicts": ("state-dict/keys", "state-dict/values", "state-dict/load", "composition/state-dict"),
    "manners:claims_little": ("parity/exact", "state-dict/values"),
    "layouts:cuts_columns": (
        *("parity/exact", "parity/general", "meta/step-after-reset", "autograd/unused-module"),
        *("communication/backward", "state-dict/load"),
    ),
    "layouts:gathers_when_read": ("parameters/other-dtypes", "sharding/rows", "parity/exact", "generated/tied"),
    "layouts:takes_even_rows": ("parity/exact", "precision/general", "refusals/twice", "generated/tied"),
    "layouts:takes_float32": (
        *("parity/general", "generated/nets", "accumulation/quiet", "state-dict/values"),
        *("spmd-mesh/training", "state-matrix/mixed"),
    ),
    "layouts:gives_sums": (
        *("parity/exact", "accumulation/quiet", "precision/general", "generated/hybrid"),
        *("composition/checkpoint-inside", "reduction/replicas-by-hook"),
    ),
    "layouts:keeps_replicas": ("parity/exact", "parity/general", "generated/frozen", "autograd/containers"),
    "backends:adds_in_reverse": SUMS,
    "backends:all_reduces_in_two_steps": SUMS,
    "backends:gathers_by_broadcasts": BYTES,
    "backends:gathers_in_halves": BYTES,
    "backends:on_another_thread": (*BYTES, "collectives/async"),
    "backends:slow": (*BYTES, "collectives/async"),
    "backends:two_ranks": ("parity/exact", "sharding/rows"),
}
#: The argument of ``noticed`` of each backend whose deviation can be counted; an implementation is named by its own.
OF_BACKENDS = {
    "backends:adds_in_reverse": "a backend adds in reverse",
    "backends:all_reduces_in_two_steps": "a backend all-reduces in two steps",
    "backends:gathers_by_broadcasts": "a backend gathers by broadcasts",
    "backends:gathers_in_halves": "a backend gathers in halves",
    "backends:on_another_thread": "a backend has a thread of its own",
    "backends:slow": "a backend is slow",
}
COUNTED = sorted(TRIED_BY.keys() - {"manners:claims_little", "backends:two_ranks"})
PAIRS = [(variant, requirement) for variant, requirements in TRIED_BY.items() for requirement in requirements]


def subject_of(variant: str) -> Subject:
    """The variant, with torch's implementation or the gloo backend beside it."""
    where = f"tests.conforming.{variant}"
    return Subject("torch", where) if variant.startswith("backends") else Subject(where, "gloo")


def world_of(variant: str) -> str:
    """A backend's process group is used in the process world only."""
    return "processes" if variant.startswith("backends") else "threads"


@pytest.mark.parametrize(("variant", "requirement"), PAIRS)
def test_a_conforming_variant_passes(variant: str, requirement: str) -> None:
    """What the behaviour catalogue leaves unspecified, a requirement leaves unspecified too."""
    end = judged(requirement, subject_of(variant), world_of(variant))
    assert end.verdict is Verdict.PASS, end


@pytest.mark.parametrize("variant", COUNTED)
def test_a_variant_shows_its_deviation(variant: str) -> None:
    """A variant shows its deviation on every rank, and no other one's: otherwise its passing would prove nothing."""
    with open_world(world_of(variant), 2, subject_of(variant)) as world:
        outcomes = world.run(lived, deadline=GUARD)
    deviation = OF_BACKENDS.get(variant) or load_implementation(f"tests.conforming.{variant}").name
    for outcome in outcomes:
        assert [each for each, count in (outcome.value or {}).items() if count] == [deviation], outcome


def test_torch_shows_no_deviation() -> None:
    """On torch and gloo no deviation is counted."""
    with open_world("threads", 2, TORCH_ON_GLOO) as world:
        assert [outcome.value for outcome in world.run(lived, deadline=GUARD)] == [{}, {}]


def test_what_is_not_claimed_is_not_tried() -> None:
    """A requirement of an unclaimed feature is not tried, and the reason given is shown, in any script."""
    variant = LoadedSubject(subject_of("manners:claims_little"), ())
    verdict, reason = variant.why_not(by_id()["reduction/sums"].requirement, "threads") or (Verdict.PASS, "")
    assert verdict is Verdict.NOT_CLAIMED
    assert load_implementation("tests.conforming.manners:claims_little").not_claimed[Feature.FORCE_SUM] in reason


def test_a_backend_on_cpus_lacks_what_cpus_lack() -> None:
    """A backend on CPUs lacks streams unless it takes that limit back; one on a device lacks nothing."""
    silent, device = Backend("silent"), Backend("device", device_type="npu")
    assert silent.lacks == ON_CPUS
    assert set(Backend("claims", lacks={"streams": "", "premul_sum": "no"}).lacks) == {*ON_CPUS, "premul_sum"} - {
        "streams"
    }
    assert device.lacks == {}


def test_what_a_backend_lacks_is_not_tried() -> None:
    """On a backend of two ranks, requirements of four are not tried, nor those of what it declares missing."""
    variant = LoadedSubject(subject_of("backends:two_ranks"), ())
    assert load_backend("tests.conforming.backends:two_ranks").ranks == 2
    for requirement in ("communication/to-group", "collectives/premul-sum"):
        verdict, _ = variant.why_not(by_id()[requirement].requirement, "processes") or (Verdict.PASS, "")
        assert verdict is Verdict.NOT_RUN, requirement
