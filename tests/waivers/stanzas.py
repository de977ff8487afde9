"""Waiver files for tests, as text."""

from __future__ import annotations

import json


def stanza(requirement: str, subject: str, expires: str = "2999-01-01", **words: str) -> str:
    """One waiver; ``words`` may give its ``issue`` and ``reason``."""
    texts = {"requirement": requirement, "subject": subject, "issue": "https://example.org/1", "reason": "known"}
    lines = [f"{key} = {json.dumps(text)}" for key, text in {**texts, **words}.items()]
    return "\n".join(["[[waiver]]", *lines, f"expires = {expires}\n"])
