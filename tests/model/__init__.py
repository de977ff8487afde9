"""Judging a user's own model: what is found wrong with its factory, and what each requirement detects."""
