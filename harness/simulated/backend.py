"""The backend ``simulated``, as a vendor of an accelerator would write it."""

from __future__ import annotations

from harness.simulated.build import library
from harness.vendor.api import Backend

library()  # once, here: ranks find it built

backend = Backend(
    name="simulated",
    device_type="simulated",
    process_group="simulated",
    ranks=8,
    imports=("harness.simulated.device", "harness.simulated.process_group"),
    timeline="harness.simulated.timeline:spans",
    own_devices=True,
    check="harness.simulated.races:races",
)
