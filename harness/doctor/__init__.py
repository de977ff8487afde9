"""``fsdp-conformance doctor``: what composable FSDP needs and does not find here, before any test runs.

    command ─▶ supervise.py ─▶ child.py ─▶ imports.py · device.py · operations.py  in a process, which may die or hang
                   │               └─▶ groups.py ─▶ a world of ranks ─▶ collectives.py · work.py · members.py
                   └─▶ Finding by row (rows.py) ─▶ told.py ─▶ table, JSON, exit status

The process of the command imports neither torch nor anything of a vendor: so nothing of theirs can stop it.
"""
