"""Applying `fully_shard`: arguments and refusals, grouping, lazy initialisation, and the meta device."""
