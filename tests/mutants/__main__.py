"""``python -m tests.mutants``: put every faulty subject before the suites, and write the kill table."""

from __future__ import annotations

from tests.mutation.run import main

if __name__ == "__main__":
    main()
