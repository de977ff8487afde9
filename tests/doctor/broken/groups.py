"""Process groups that hang, die, or give something else than is asked for; gloo does the work underneath."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import torch.distributed as dist
from torch import Tensor

from harness.vendor import Backend
from tests.mutants.backends.backends import OverGloo, over_gloo


class NeverStarts(OverGloo):
    """Waits for a fabric that is not there."""

    def __init__(self, *given: Any) -> None:
        threading.Event().wait()


class DiesReducing(OverGloo):
    """Crashes where gradients are reduced."""

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        """Crash."""
        os.kill(os.getpid(), signal.SIGSEGV)

    _reduce_scatter_base = reduce_scatter_single


class HangsBroadcasting(OverGloo):
    """Waits for a message that nobody sends."""

    def broadcast(self, *_: Any) -> Any:
        """Wait."""
        threading.Event().wait()


class Handle:
    """What another library might call a work."""

    def __init__(self, work: Any) -> None:
        self.wait = work.wait


class GivesHandles(OverGloo):
    """Its results are there only when its own kind of handle is waited for."""

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:
        """Gather."""
        return Handle(self.inner.all_gather_single(output, input, opts))


class KnowsOldNames(OverGloo):
    """Written for an older torch."""

    all_gather_single = dist.ProcessGroup.all_gather_single
    reduce_scatter_single = dist.ProcessGroup.reduce_scatter_single


never_starts = over_gloo("broken_never_starts", NeverStarts)
dies_reducing = over_gloo("broken_dies_reducing", DiesReducing)
hangs_broadcasting = over_gloo("broken_hangs_broadcasting", HangsBroadcasting)
gives_handles = over_gloo("broken_gives_handles", GivesHandles)
knows_old_names = over_gloo("broken_knows_old_names", KnowsOldNames)

if "BROKEN_STRING" not in dist.Backend._plugins:
    dist.Backend.register_backend("broken_string", OverGloo, devices="xyz")
registered_by_a_string = Backend(name="broken_string", process_group="broken_string", imports=(__name__,))
unregistered = Backend(name="unregistered", process_group="no_such_ccl")
