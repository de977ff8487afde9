"""What a user may not do is a ValueError here. Where torch says AssertionError or IndexError, it is that as well."""

from __future__ import annotations


class NotAllowed(ValueError, AssertionError):
    """Caught by code written for torch, which asserts these things."""


class NothingGiven(ValueError, IndexError):
    """Caught by code written for torch, which looks for the first of an empty list."""
