"""Measurements: medians and ratios, both sides of a ratio taken in one run."""
