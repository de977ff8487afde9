"""``python -m tests.faulty``: put every faulty subject before the suites, and write the kill table."""

from __future__ import annotations

from harness import profiles

profiles.register()  # before the suites are imported, which take from the profile how many cases they draw

from tests.detection_run import main  # noqa: E402

if __name__ == "__main__":
    main()
