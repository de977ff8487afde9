"""``python -m tests.mutants``: measure which requirement kills each mutant, and write the mutation results."""

from __future__ import annotations

from tests.mutation.run import main

if __name__ == "__main__":
    main()
