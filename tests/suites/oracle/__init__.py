"""Tests of what the suites compare results with: bounds, and what collectives give."""
