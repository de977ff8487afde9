"""``fsdp-conformance doctor``: what composable FSDP needs and does not find here, before any test runs.

    command ─▶ supervise.py ─▶ child.py ─▶ probes/: imports · device · operations    in a process, which may die or hang
                   │               └─▶ probes/groups.py ─▶ a world of ranks ─▶ probes/: collectives · work · members
                   └─▶ Finding by row (rows.py) ─▶ findings_text.py ─▶ table, JSON, exit status

The process of the command imports neither torch nor anything of a vendor: so nothing of theirs can stop it.
"""
