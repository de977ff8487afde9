"""The kinds of world that a requirement can be judged in, the levels that it can have, and enums of strings."""

from __future__ import annotations

from enum import Enum
from typing import Literal, get_args

#: Both kinds of world, which a requirement is judged in unless it says otherwise.
WORLDS = ("threads", "processes")
#: The kind in which requirements of processes run on ranks that a launcher has started.
ATTACHED = "attached"
#: Every kind of world: what runs in processes runs in attached ones, too.
KINDS = (*WORLDS, ATTACHED)

#: How much a requirement demands, as RFC 2119 has it.
Level = Literal["must", "should", "may"]
LEVELS: tuple[Level, ...] = get_args(Level)


class StringEnum(str, Enum):
    """An enum whose members are strings, also when they are formatted: what ``enum.StrEnum`` is from Python 3.11 on."""

    def __str__(self) -> str:
        return str.__str__(self)
