"""All-gathers, reduce-scatters and all-reduces of whole groups of parameters, and reductions under way."""
