"""Measuring which mutants the suites kill."""
