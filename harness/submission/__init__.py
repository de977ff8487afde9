"""Submissions: one archive of record files and what belongs to them, and whether such an archive is intact.

    run.jsonl ─▶ bundle ─▶ submission.zip ─▶ verify ─▶ verified, or every problem in one sentence each

``verify`` finds accidents and careless edits. It cannot prove who wrote the records or that they are true: sign the
archive for that (docs/submission.md).
"""
