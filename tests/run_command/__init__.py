"""Tests of whole runs: the command, interruptions, and what cannot start."""
