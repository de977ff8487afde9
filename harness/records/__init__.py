"""The record file: its header, records and footer, writing and reading it, and what a run comes to."""
