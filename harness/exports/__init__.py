"""A run in the formats of other programs: CTRF, GitHub Actions, and a summary as JSON."""
