"""Submissions: the records of runs and all that belongs to them in one archive, and whether such an archive is whole.

    run.jsonl ─▶ bundle ─▶ submission.zip ─▶ verify ─▶ verified, or everything that is wrong with it

Nothing in an archive is believed: ``verify`` makes the manifest and the page again, from the record files in it, and
compares. What that can show, and what it cannot, is said in docs/submission.md.
"""
