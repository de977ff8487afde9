"""Tests of `harness/records`."""
