"""The words that requirements are written in: cases, strategies, programs, the baseline, tolerances."""
