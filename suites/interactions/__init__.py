"""Features in combination: scenarios along all dimensions of training, every pair of whose values is tried."""
