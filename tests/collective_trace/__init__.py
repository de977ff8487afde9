"""Tests of `harness/collective_trace`."""
