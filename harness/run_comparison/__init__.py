"""Two runs compared result by result: what regressed, what is fixed, what only one of them has."""
