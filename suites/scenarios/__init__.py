"""Scenarios: complete training situations, as a value of each dimension."""
