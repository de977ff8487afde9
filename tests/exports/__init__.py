"""Tests of `harness/exports`."""
