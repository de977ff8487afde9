"""Backends whose modules can be imported, and which are wrong all the same."""

from __future__ import annotations

from typing import Any

from harness.vendor import Backend

needs_a_plugin = Backend(name="needy", imports=("tests.doctor.broken.raises",))
unsuitable = Backend(name="unsuitable", ranks="eight")  # type: ignore[arg-type]
not_a_backend: Any = "gloo"
no_such_device = Backend(name="nowhere", device_type="xpu", process_group="xccl", ranks=2)
moves_nothing = Backend(
    name="fake", process_group="fake", ranks=2, imports=("torch.testing._internal.distributed.fake_pg",)
)
