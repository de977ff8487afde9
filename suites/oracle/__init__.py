"""One oracle: a script of actions done to a net without ranks and on ranks, and what must then be equal."""
