"""``python -m tests.mutants``: what kills each mutant; ``python -m tests.mutants random``: random mutants."""

from __future__ import annotations

import sys

from tests.mutation import run
from tests.random_mutants import run as random_run

if __name__ == "__main__":
    if sys.argv[1:2] == ["random"]:
        random_run.main(sys.argv[2:])
    else:
        run.main()
