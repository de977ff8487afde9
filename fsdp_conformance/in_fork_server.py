"""What the fork server imports first, also while it has torch and the suites yet to import.

Ctrl-C is for the controller; the current folder, which comes before all others as with ``python -c``, goes last, so
that no package there is imported in place of ours; and no garbage is looked for until all is imported.
"""

from __future__ import annotations

import gc
import os
import signal

#: As in ``harness/worlds/workers/fork_server.py``: only in the fork server does importing this module do anything.
if "FSDP_CONFORMANCE_FORK_SERVER" in os.environ:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # a sixth of the time; ``harness/worlds/preload.py`` enables it again

    from fsdp_conformance.installed import current_folder_last

    current_folder_last()
