"""Probes: small questions to a device and a backend, each of which returns words or raises."""
