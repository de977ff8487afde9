"""The built-in backend of any machine, gloo; it is known without torch."""

from __future__ import annotations

import os

from harness.vendor.api import Backend

gloo = Backend(
    name="gloo",
    device_type="cpu",
    process_group="gloo",
    ranks=max(4, os.cpu_count() or 1),
    lacks={"premul_sum": "gloo has no PREMUL_SUM"},
)
