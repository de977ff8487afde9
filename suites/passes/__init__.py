"""Forwards and backwards other than one of each: orders, autograd graphs, and groups that run in part."""
