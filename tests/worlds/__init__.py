"""Tests of the thread and process worlds."""
