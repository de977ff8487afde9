"""The first run on a machine with GPUs: what it does part by part, and the backends that only such a machine has."""
