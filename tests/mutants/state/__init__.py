"""Mutants that lose or mix up state."""
