"""Tests of `harness/submission`."""
