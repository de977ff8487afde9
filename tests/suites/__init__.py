"""Tests of the suites: their oracles, strategies and order."""
