"""Mutants that are wrong in passes, composition, communication and scripts."""
