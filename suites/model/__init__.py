"""The user's own model, made by a function of theirs: the same oracle, outside the fixed list of requirements."""
