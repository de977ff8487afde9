"""The words that requirements are written in: cases, nets, strategies, programs, tolerances."""
