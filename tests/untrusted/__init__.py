"""Tests that nothing handed in by others can run code, hang, or end in a traceback."""
