"""A run in formats of other programs: CTRF and JUnit."""
