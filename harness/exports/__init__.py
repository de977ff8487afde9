"""A run in the formats of other programs: CTRF."""
