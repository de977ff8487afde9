"""A plugin whose library is not there."""

raise ImportError("libnpu_runtime.so.3: cannot open shared object file")
