"""Home directories in records are ``~``: a record may be published, and the path of a home names a person.

File "/home/ada/venv/lib/torch/…   ─▶   File "~/venv/lib/torch/…
"""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from typing import Any


def without_homes(value: Any) -> Any:
    """The same data, whose text has no path of this user's home directory."""
    named = sorted(map(re.escape, _homes()), key=len, reverse=True)
    return _replaced(value, re.compile(rf"(?<![\w-])({'|'.join(named)})(?![\w-])")) if named else value


def _homes() -> set[str]:
    """The home directory by the environment and by the system, as it is called and where it is."""
    called = {os.path.expanduser("~")}
    with suppress(KeyError):  # as in a container, whose user has no entry
        called.add(pwd.getpwuid(os.getuid()).pw_dir)
    found = {home.rstrip("/") for one in called for home in (one, os.path.realpath(one))}
    return {home for home in found if home.startswith("/")}


def _replaced(value: Any, homes: re.Pattern[str]) -> Any:
    if type(value) is str:  # and no word of an enumeration
        return homes.sub("~", value)
    if isinstance(value, dict):
        return {_replaced(key, homes): _replaced(item, homes) for key, item in value.items()}
    return type(value)(_replaced(item, homes) for item in value) if type(value) in (list, tuple) else value
