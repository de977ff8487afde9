"""A plugin that ends the process where it finds no licence, and says so on stderr."""

import os
import sys

print("npu: no licence", file=sys.stderr, flush=True)
os._exit(3)
