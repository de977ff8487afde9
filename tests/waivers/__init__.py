"""Tests of `harness/waivers`."""
