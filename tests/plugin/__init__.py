"""Tests of the pytest plugin, as its users meet it."""
