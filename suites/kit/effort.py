"""How many cases a requirement draws, of the number that the profile in force gives to each."""

from __future__ import annotations

from hypothesis import Phase, settings

#: From how many cases a requirement on: as the profile "full" has them.
THOROUGH = 8


def costly(divisor: int = 4) -> settings:
    """Fewer than the profile says, where a case takes long: of eight, two."""
    return settings(max_examples=-(-_cases() // divisor))


def examples_first(divisor: int = 8) -> settings:
    """Where cases are given that have all that matters, and take long: of eight, one more; of fewer, those alone."""
    drawn = _cases() // divisor
    return settings(max_examples=drawn) if drawn else settings(phases=[Phase.explicit])


def _cases() -> int:
    assert settings.default is not None
    return settings.default.max_examples


def is_thorough() -> bool:
    """Whether the profile gives so many cases that it may also try all of something, or the largest sizes."""
    return _cases() >= THOROUGH
