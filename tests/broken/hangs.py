"""A plugin that waits for a driver that never answers."""

import threading

threading.Event().wait()
