"""Ranks, tensors and rows: the mechanism that judges an implementation of composable FSDP."""

__version__ = "0.1.0"
