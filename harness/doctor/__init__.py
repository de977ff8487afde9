"""``fsdp-conformance doctor``: what composable FSDP needs and does not find here, before any test runs.

    __main__.py ─▶ stages.py ─▶ imports.py        torch, the backend, the implementation
                            ├▶ device.py         in one process without a process group
                            ├▶ groups.py         on the ranks of a world
                            └▶ requirements.py   the chapter of collectives, by pytest

Whatever is of a vendor runs in processes that a world supervises, so that a crash or a hang is a finding.
"""
