"""Factories of users' own models: one that is right, and what can be wrong with one."""

from __future__ import annotations

from typing import Any

import torch

from reference_models.nets.transformer import Transformer


def decoder() -> Any:
    """A small decoder with a tied head."""
    return Transformer(layers=4), torch.randint(0, 8, (2, 8))
