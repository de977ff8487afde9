"""Import one module from a file that the environment names, in place of the installed one.

    MUTANT_MODULE=torch.distributed.fsdp._fully_shard._fsdp_param  MUTANT_SOURCE=/tmp/…/mutant.py

The checkout and the installed packages stay as they are, and no byte code is cached.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _Loader(SourceFileLoader):
    """Takes the code from the named file, and all else (package, ``__file__``) from the installed module."""

    def get_code(self, fullname: str) -> CodeType:
        text = Path(os.environ["MUTANT_SOURCE"]).read_bytes()
        return compile(text, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != os.environ.get("MUTANT_MODULE"):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder())
