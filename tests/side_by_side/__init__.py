"""Random scenarios: on the reference beside torch, with what a user sees to differ, and judged on one subject alone."""
