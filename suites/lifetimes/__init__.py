"""When parameters and gradients exist: the events of each group, and the bytes that a rank holds."""
