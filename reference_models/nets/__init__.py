"""Nets, one a file, each named for what it stresses. They import torch only."""

from reference_models.nets.branches import Branches
from reference_models.nets.convolution import Convolution
from reference_models.nets.embedding import Embedding
from reference_models.nets.frozen import Frozen
from reference_models.nets.mixed_dtypes import MixedDtypes
from reference_models.nets.mlp import MLP
from reference_models.nets.norms import Norms
from reference_models.nets.root_parameters import RootParameters
from reference_models.nets.structured import Outputs, Structured
from reference_models.nets.tied import Tied
from reference_models.nets.torch_layers import MultiHead, Recurrent
from reference_models.nets.transformer import Attention, Transformer, TransformerBlock
from reference_models.nets.twice import Twice
from reference_models.nets.uneven import Uneven

__all__ = [
    "MLP",
    "Attention",
    "Branches",
    "Convolution",
    "Embedding",
    "Frozen",
    "MixedDtypes",
    "MultiHead",
    "Norms",
    "Outputs",
    "Recurrent",
    "RootParameters",
    "Structured",
    "Tied",
    "Transformer",
    "TransformerBlock",
    "Twice",
    "Uneven",
]
