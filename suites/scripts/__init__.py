"""Actions in any legal order, and training while something is in the way."""
