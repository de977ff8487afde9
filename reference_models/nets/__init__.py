"""Nets, one a file, each named for what it stresses. They import torch only."""

from reference_models.nets.mlp import MLP
from reference_models.nets.transformer import Transformer, TransformerBlock

__all__ = ["MLP", "Transformer", "TransformerBlock"]
