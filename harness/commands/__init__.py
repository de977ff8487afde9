"""The subcommands of ``fsdp-conformance``, one a file: each has ``main(arguments) -> exit status``, and its own help.

    fsdp-conformance compare a.jsonl b.jsonl   ─▶   harness.commands.compare.main(["a.jsonl", "b.jsonl"])

Only the requested command is imported, so that help is fast and no missing dependency breaks another command.
"""

from __future__ import annotations

#: Name, the module that has its ``main``, and a one-line description.
COMMANDS = {
    "run": ("harness.commands.run", "run the suites and write records and a page"),
    "watch": ("harness.commands.watch", "follow a run by its record file"),
    "report": ("harness.report.__main__", "make one HTML page from record files"),
    "doctor": ("harness.doctor.__main__", "check what a device and a backend support, before the suites"),
    "bundle": ("harness.commands.bundle", "make one archive of runs for submission"),
    "verify": ("harness.commands.verify", "check that an archive is intact, and show its results"),
    "site": ("harness.commands.site", "build static pages from many runs: a matrix, histories, badges"),
    "compare": ("harness.commands.compare", "show what differs between two runs"),
    "reproduce": ("harness.commands.reproduce", "run a recorded result again, or make a script that shows its failure"),
    "waivers": ("harness.commands.waivers", "check waivers, or suggest one for each failure"),
    "attached": ("harness.attached", "run pytest where a launcher, such as torchrun, has started the ranks"),
    "ctrf": ("harness.commands.ctrf", "write a run as CTRF, the Common Test Report Format"),
}
