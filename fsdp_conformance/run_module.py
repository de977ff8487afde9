"""``python -m fsdp_conformance.run_module NAME ARGUMENT …``: as ``python -m NAME …``, with the current folder last.

So processes that we start find modules of the current folder, but none of its folders in place of ours.
"""

from __future__ import annotations

import runpy
import sys

from fsdp_conformance.installed import current_folder_last

if __name__ == "__main__":
    current_folder_last()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
