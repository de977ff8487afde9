"""Loads the harness as a pytest plugin."""

import gc

#: Until tests are collected: nothing that is imported is garbage, and looking for it is a sixth of the time.
gc.disable()
pytest_plugins = ["harness.pytest_plugin"]
