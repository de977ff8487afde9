"""Tests of `harness/data`."""
