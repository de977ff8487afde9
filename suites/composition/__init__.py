"""Several functions on one net: activation checkpointing, `replicate`, and all of them together."""
