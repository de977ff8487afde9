"""A plugin that waits for a driver that never answers, and says so to the pipe of its test."""

import os
import threading

with open(os.environ["BROKEN_PIPE"], "w") as pipe:
    pipe.write("!")
threading.Event().wait()
