"""Vendors that are broken before a test can run: the doctor is to tell of each by the check that it breaks."""
