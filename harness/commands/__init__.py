"""The subcommands of ``fsdp-conformance``, one a file: each has ``main(arguments) -> exit status``, and its own help.

    fsdp-conformance compare a.jsonl b.jsonl   ─▶   harness.commands.compare.main(["a.jsonl", "b.jsonl"])

Only the one that was asked for is imported: help comes at once, and nothing that one needs can stop another.
"""

from __future__ import annotations

#: Name, the module that has its ``main``, and what it does, in a line.
COMMANDS = {
    "run": ("harness.commands.run", "run the suites and write records and a page"),
    "watch": ("harness.commands.watch", "say how far a run is, by the file that it writes"),
    "report": ("harness.report.__main__", "make one HTML page of record files"),
    "doctor": ("harness.doctor.__main__", "say what a device and a backend lack, before the suites"),
    "bundle": ("harness.commands.bundle", "make one archive of runs, to be submitted"),
    "verify": ("harness.commands.verify", "say whether such an archive is intact, and what it shows"),
    "compare": ("harness.commands.compare", "say what differs between two runs"),
    "reproduce": ("harness.commands.reproduce", "run a recorded row again, or make a script that shows its failure"),
    "waivers": ("harness.commands.waivers", "check waivers, or suggest one for each failure"),
    "ctrf": ("harness.commands.ctrf", "write a run as CTRF, the Common Test Report Format"),
}
