"""Ranks that tests start from here find the suites imported, as those of a run do."""

import pkgutil

import suites
from harness.worlds.workers.fork_server import preload_programs

preload_programs([found.name for found in pkgutil.walk_packages(suites.__path__, f"{suites.__name__}.")])
