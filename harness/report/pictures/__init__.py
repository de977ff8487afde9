"""The pictures of a page as data: curves, heat map, spread, collectives of ranks, and what streams ran when."""
