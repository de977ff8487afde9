"""The conformance requirements, a chapter a file, in the order of a model's life."""
