"""Ranks, tensors and rows: the mechanism that judges an implementation of composable FSDP.

PYTEST_DONT_REWRITE: our commands have imported it before pytest could.
"""

__version__ = "0.1.0"
