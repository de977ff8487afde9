"""Generated models: trees of blocks cut into any groups, with an oracle that each net derives for itself."""
