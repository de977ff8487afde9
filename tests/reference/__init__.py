"""Tests of parts of the reference that no requirement reaches."""
