"""What the fork server imports first: it starts with the current folder before all others, as ``python -c`` does."""

from __future__ import annotations

import os

from fsdp_conformance.installed import current_folder_last

#: As in ``harness/worlds/workers/fork_server.py``: only in the fork server does importing this module do anything.
if "FSDP_CONFORMANCE_FORK_SERVER" in os.environ:
    current_folder_last()
