"""From record files to one HTML page that a person, a boss or a customer can read without anything else.

``python -m harness.report run.jsonl -o page.html`` goes through three steps, each plain data to plain data::

    run.jsonl ──records/reader.py──▶ Run ──records/standing.py──▶ Standing, Tally ──view.py──▶ Page ──page.py──▶ HTML

Nothing here runs a test, imports torch, or trusts what a record says: every string is shown, none is executed.
"""
