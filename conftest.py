"""Loads the harness as a pytest plugin; nothing else."""

pytest_plugins = ["harness.plugin", "harness.plugin_test", "harness.plugin_end"]
