"""``fsdp-conformance``, also as ``python -m fsdp_conformance``: its commands are in ``harness/commands``."""

from __future__ import annotations

import sys

from fsdp_conformance.installed import ROOT, current_folder_last, intruder


def main() -> int:
    """Run the command line: its exit status, 2 if another package stands in the place of one of ours."""
    current_folder_last()
    why = intruder()
    try:
        if not why:
            from harness.cli import main as command

            return command()
    except ImportError as error:  # of the few names that are imported before any command is
        why = f"{error}: is another package named harness installed in {ROOT}? Have an environment for each"
    print(f"fsdp-conformance: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
