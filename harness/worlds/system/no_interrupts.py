"""What the fork server imports first: Ctrl-C is for the controller, also while the server still imports torch."""

from __future__ import annotations

import os
import signal

#: As in ``workers/fork_server.py``: only in the fork server does importing this module do anything.
if "FSDP_CONFORMANCE_FORK_SERVER" in os.environ:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
