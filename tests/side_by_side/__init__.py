"""The reference beside torch: random scenarios played on both, and what a user sees to differ."""
