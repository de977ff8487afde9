"""``fsdp-conformance doctor``: what composable FSDP needs and does not find here, before any test runs.

    __main__.py ─▶ examination.py ─▶ imports.py            torch, the backend, the implementation
                                  ├▶ device.py, operations.py, on one process without a process group
                                  ├▶ groups.py             on ranks of a world
                                  └▶ requirements.py       the chapter of collectives, by pytest
                   findings_text.py: the table, the JSON

Whatever is of a vendor runs in processes that a world supervises, so that a crash or a hang is a finding.
"""
