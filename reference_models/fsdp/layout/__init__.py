"""How one tensor is cut and on which mesh: arithmetic and meshes, no communication."""
