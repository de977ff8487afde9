"""Mutants that only a device shows: implementations, process groups and device plugins, tried on simulated devices."""
