"""Mutants that are wrong about modules and parameters."""
