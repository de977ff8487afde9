"""Where a module has a parameter, and how another tensor is put in its place."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class Owner(NamedTuple):
    """A module and the name under which it has a parameter; a shared parameter has several."""

    module: nn.Module
    name: str

    def show(self, form: nn.Parameter) -> None:
        """Register a parameter in place of another; a class that sets attributes in its own way is asked to."""
        if type(self.module).__setattr__ is nn.Module.__setattr__:
            self.module._parameters[self.name] = form
        else:
            setattr(self.module, self.name, form)
