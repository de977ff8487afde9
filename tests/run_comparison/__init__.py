"""Tests of `harness/run_comparison`."""
