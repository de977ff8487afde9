"""Training gives what the unsharded model gives: parity, mixed precision, offload and resharding."""
