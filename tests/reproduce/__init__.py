"""Tests of `harness/reproduce`."""
