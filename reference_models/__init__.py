"""The reference implementation of composable FSDP, and the nets that suites train."""
