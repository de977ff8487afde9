"""Tests of `harness/trial`."""
