"""The published results of real software: docs/results, and what is made from records there."""
