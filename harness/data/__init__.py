"""Frozen facts and pure functions on plain data: cases, comparisons, type checks, text; imports nothing else of the
project.
"""
