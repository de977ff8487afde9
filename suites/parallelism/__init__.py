"""Meshes of more than one axis: hybrid sharding, tensor parallelism, and data axes by name."""
