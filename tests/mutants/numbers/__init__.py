"""Mutants that compute wrong numbers."""
