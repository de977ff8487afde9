"""A module in training: its state, lazy initialisation, prefetching, and where autograd is."""
