"""What sharded modules are told: settings of all, of one module, or of each.

``set gradient_divide_factor 4.0 in 0`` is of one module, ``… in root`` of the root alone, ``… in each`` of all one by
one; with no such word the root is told, and what is below if the setter goes there.
"""

from __future__ import annotations

import ast
from typing import Any

from harness.vendor import Feature
from harness.vendor.bounds import asks_for, asks_for_method
from suites.oracle.training import Trained


class Told(Trained):
    """A sharded net that is told things. While backwards are not the last, reductions are ``is_under_way``."""

    def tell(self, setter: str, value: Any, where: str = "", **options: Any) -> None:
        """Call a setter of a module, with options of its own, and of those below unless it is the "root" alone."""
        asks_for_method(setter)
        if where == "root":
            asks_for(Feature.RECURSE)
            where, options = "", {**options, "recurse": False}
        getattr(self.net.get_submodule(where), setter)(value, **options)

    def defer(self, what: str) -> None:
        """Switch off reduction, or a part of it."""
        self.switch(what, False)

    def resume(self, what: str) -> None:
        """Switch it on again."""
        self.switch(what, True)

    def switch(self, what: str, value: bool) -> None:
        """Set what is named, of all or ``in`` one module."""
        setting, _, where = what.partition(" in ")
        self.is_under_way = not value if setting == "last" else self.is_under_way
        self.tell("set_is_last_backward" if setting == "last" else f"set_requires_{setting}", value, where)

    def places(self) -> list[str]:
        """The names of sharded modules, of several in one call that of the first; the root last."""
        raise NotImplementedError

    def set(self, what: str) -> None:
        """Call a setter with a value: of the net, ``in`` a module, in the root alone, or in each sharded module."""
        super().set(what)
        setting, _, where = what.partition(" in ")
        name, value = setting.split()
        for place in self.places() if where == "each" else [where]:
            self.tell(f"set_{name}", ast.literal_eval(value), place)

    def ahead(self, what: str) -> None:
        """Say what a module gathers ahead: after ``forward root 0 1`` the root has the first two blocks gathered."""
        direction, *names = what.split()
        first, *others = (self.net.get_submodule("" if name == "root" else name) for name in names)
        getattr(first, f"set_modules_to_{direction}_prefetch")(others)

    def keep(self, after: str) -> None:
        """Free nothing after forward, or after backward."""
        self.tell(f"set_reshard_after_{after}", False)

    def free(self, after: str) -> None:
        """Free all after forward, or after backward."""
        self.tell(f"set_reshard_after_{after}", True)
