"""Tests of what is installed: the wheel, and the names that others rely on."""
