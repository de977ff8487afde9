"""Unusual but conforming subjects, one small object each, which every requirement must pass.

A suite could kill every mutant by failing every subject. Each module here holds implementations or backends with one
deviation from torch's each, and a sentence that says why it is correct. Deviations are counted where they occur::

    adds_in_reverse = variant("adds in reverse", torch, reduce=AddsInReverse)      noticed("adds in reverse")

``tests/conforming/test_no_false_blame.py`` tests that they pass, and that each shows its deviation.
"""
