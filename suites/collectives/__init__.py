"""The collectives that composable FSDP needs of a process group."""
