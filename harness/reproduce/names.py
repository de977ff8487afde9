"""What each thing is called in one file that was many: as before where it can be, elsewhere by its module's name too.

``train`` of ``programs`` and of ``baseline`` become ``train`` and ``baseline_train``, in the order of first use.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from itertools import count

from harness.reproduce.shaken import Shaken
from harness.reproduce.sources import Meaning
from harness.reproduce.uses import own_names


def names_of(shaken: Shaken) -> dict[Meaning, str]:
    """A name for each meaning, its own alone, that no definition which uses it has for something else."""
    hidden: dict[Meaning, set[str]] = {meaning: set() for meaning in shaken.meanings}
    clashing: dict[Meaning, set[str]] = {meaning: set() for meaning in shaken.meanings}
    for taken in shaken.statements:
        own = {name for part in taken.parts for name in own_names(part)}
        for use, meaning, whole in taken.uses:
            hidden[meaning] |= own
            if whole or use.name.id != _preferred(meaning):
                clashing[meaning] |= own
    names: dict[Meaning, str] = {}
    taken_names, same = set(dir(builtins)), dict[tuple[str, str], str]()
    for meaning in (*shaken.roots, *(each for each in shaken.meanings if each not in shaken.roots)):
        place = (f"{meaning.module}.{meaning.name}".strip("."), _preferred(meaning))
        if meaning.called and place in same:  # ``import torch.nn as nn`` and ``from torch import nn``
            names[meaning] = same[place]
            continue
        wanted = [_preferred(meaning)] if _preferred(meaning) not in clashing[meaning] else []
        others = (name for name in _others(meaning) if name not in hidden[meaning])
        names[meaning] = next(name for name in (*wanted, *_first(others, taken_names)) if name not in taken_names)
        taken_names.add(names[meaning])
        same[place] = names[meaning]
    return names


def _preferred(meaning: Meaning) -> str:
    return meaning.called or meaning.name or meaning.module.rpartition(".")[2]


def _others(meaning: Meaning) -> Iterator[str]:
    module, name = meaning.module.rpartition(".")[2], _preferred(meaning)
    private = "_" if name.startswith("_") else ""
    longer = f"{private}{module}_{name.lstrip('_')}"
    yield longer
    yield from (f"{longer}_{number}" for number in count(2))


def _first(names: Iterator[str], taken: set[str]) -> list[str]:
    return [next(name for name in names if name not in taken)]
