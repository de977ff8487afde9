"""The stages of an examination, in order, each in processes that a vendor may crash or hang.

the backend and the implementation ─▶ the device ─▶ the process group ─▶ what the implementation does ─▶ requirements
"""

from __future__ import annotations

import importlib
from functools import partial

import torch

from harness.doctor import device, groups, processes, requirements, sharding
from harness.doctor.checks import Finding, Status
from harness.doctor.examination import Examination, Refused
from harness.doctor.imports import BACKEND, IMPLEMENTATION, REFUSED, load
from harness.vendor.api import Backend
from harness.vendor.load import Subject, load_backend, load_implementation
from harness.worlds.make import open_world
from harness.worlds.workers.fork_server import start_ahead
from harness.worlds.workers.supervised_world import shutdown_pool

#: Where the subject is loaded: nothing of it is known yet.
_PLAIN = Backend(name="imports")


def ask_subject(examined: Examination) -> None:
    """Ask all that is asked of a subject. Raises Refused if there is none of its names."""
    _ask_imports(examined)
    if examined.is_broken(BACKEND):
        return
    backend = load_backend(examined.backend)
    facts = {"name": backend.name, "device_type": backend.device_type, "process_group": backend.process_group}
    examined.facts = {**facts, "ranks": backend.ranks, "lacks": sorted(backend.lacks), "torch": torch.__version__}
    _ask_device(examined, backend)
    if backend.ranks < 1:
        words = f"the backend offers no ranks: Backend.ranks is {backend.ranks}"
        examined.add(Finding(groups.process_group.check, Status.MISSING, words))
        return
    if why_not := _no_ranks(examined, backend):
        examined.leave_out(groups.process_group.check, why_not)
        return
    _ask_group(examined, backend)
    _ask_implementation(examined, backend)
    _ask_requirements(examined)


def _ask_imports(examined: Examination) -> None:
    """Whether the subject can be loaded, in a process that may hang or die of it."""
    try:
        assert Subject(examined.implementation, examined.backend).modules
    except ValueError as error:
        raise Refused(str(error)) from None
    start_ahead(_PLAIN)
    importlib.import_module("harness.worlds.processes.role")  # two seconds, in which the fork server starts
    with processes.one_process(_PLAIN) as world:
        for check, spec in ((BACKEND, examined.backend), (IMPLEMENTATION, examined.implementation)):
            found = processes.ask(world, check, load, (spec, check.id), examined.patience)
            if found.said.startswith(REFUSED):
                raise Refused(found.said.removeprefix(REFUSED))
            examined.add(found)
            if examined.is_broken(BACKEND):
                return


def _ask_device(examined: Examination, backend: Backend) -> None:
    """In one process, which is gone before ranks need the device: some devices serve one process at a time."""
    with processes.one_process(backend) as world:
        for name, probe in device.PROBES.items():
            given = (name, examined.backend)
            why_not = "a CPU needs none" if backend.device_type == "cpu" and not probe.on_cpu else ""
            examined.ask(probe.check, why_not, partial(processes.ask, world, probe.check, processes.on_device, given))


def _no_ranks(examined: Examination, backend: Backend) -> str:
    """Why no ranks can be started; "" if they can."""
    needed = (device.device_module.check, device.devices.check)
    broken = [check.id for check in needed if backend.device_type != "cpu" and examined.is_broken(check)]
    return f"no rank can have a device ({', '.join(broken)})" if broken else ""


def _no_group(examined: Examination) -> str:
    check = groups.process_group.check
    return f"no process group starts ({check.id})" if examined.is_broken(check) else ""


def _ask_group(examined: Examination, backend: Backend) -> None:
    """On the ranks of a world, which is gone before pytest starts others."""
    with open_world("processes", min(2, backend.ranks), Subject("torch", examined.backend)) as world:
        for name, probe in groups.PROBES.items():
            tries = partial(processes.ask, world, probe.check, groups.in_group, (name,))
            examined.ask(probe.check, _no_group(examined), tries)
    shutdown_pool()


def _ask_implementation(examined: Examination, backend: Backend) -> None:
    """On ranks of the implementation: two processes, then two threads of one."""
    spec = examined.implementation
    broken = f"the implementation does not load ({IMPLEMENTATION})" if examined.is_broken(IMPLEMENTATION) else ""
    why_not = broken or _no_group(examined) or _not_for(examined, backend)
    subject = Subject("torch" if broken else spec, examined.backend)
    with open_world("processes", min(2, max(backend.ranks, 1)), subject) as world:
        for name, probe in sharding.PROBES.items():
            examined.ask(
                probe.check, why_not, partial(processes.ask, world, probe.check, sharding.in_group, (name, spec))
            )
    reason = "" if why_not else load_implementation(spec).one_rank_per_process
    why_not = why_not or reason or ("" if backend.thread_ranks > 1 else "the backend runs no threads")
    if any(one.check.id == sharding.averages.check.id and one.state is Status.WRONG for one in examined.findings):
        why_not = why_not or "gradients are wrong on ranks that are processes, too"
    with open_world("threads", 2, subject) as world:
        check = sharding.THREADS
        examined.ask(check, why_not, partial(processes.ask, world, check, sharding.in_group, ("averages", spec)))
    shutdown_pool()


def _not_for(examined: Examination, backend: Backend) -> str:
    """Why an implementation's sharding is not tried; "" if it is."""
    if backend.ranks < 2:
        return "needs two ranks"
    loaded = load_implementation(examined.implementation)
    return "" if loaded.fully_shard else "the implementation has no fully_shard"


def _ask_requirements(examined: Examination) -> None:
    """By pytest, of torch's own implementation where the one that is judged does not load."""
    wanted = [test for test in requirements.tests() if examined.wants(test.requirement)]
    why_not = _no_group(examined) or (examined.too_late() if wanted else "")
    if wanted and not why_not:
        implementation = "torch" if examined.is_broken(IMPLEMENTATION) else examined.implementation
        subject = Subject(implementation, examined.backend)
        judged, last = requirements.judged(subject, wanted, examined.patience / 2, examined.left)
        for one in judged:
            examined.add(one)
        examined.incomplete = len(judged) < len(wanted)
        why_not = examined.too_late() or f"pytest ended before that: {last}"
    found = {one.check.id for one in examined.findings}
    for test in wanted:
        if test.requirement not in found:
            examined.leave_out(requirements.check(test), why_not)
