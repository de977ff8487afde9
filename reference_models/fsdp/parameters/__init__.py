"""One parameter in its sharded and unsharded forms, and groups that are gathered together."""
