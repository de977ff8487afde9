"""A plugin whose library crashes while it is loaded."""

import ctypes

ctypes.string_at(0)
