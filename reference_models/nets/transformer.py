"""A small decoder without dropout: embeddings, blocks of attention and MLP with norms, a head; optionally tied.

Attention is written out, since not every device has a fused kernel for sharded tensors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from reference_models.nets.mlp import MLP

#: How tensor parallelism cuts it, by module; ``*`` is any layer. Heads and hidden units go with columns, which are rows
#: of the weight; a row-wise layer takes them back in, and its outputs are summed; everything else every rank has whole.
TENSOR_PARALLEL_PLAN = {
    "tokens": "row",
    "positions": "replicated",
    "layers.*.attention_norm": "replicated",
    "layers.*.attention.wq": "column",
    "layers.*.attention.wk": "column",
    "layers.*.attention.wv": "column",
    "layers.*.attention.wo": "row",
    "layers.*.mlp_norm": "replicated",
    "layers.*.mlp.in_proj": "column",
    "layers.*.mlp.out_proj": "row",
    "norm": "replicated",
    "head": "column",
}


class Attention(nn.Module):
    """Causal self-attention with separate projections, so that each can be sharded by heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        assert dim % heads == 0, (dim, heads)
        self.head_dim = dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, dim)`` to the same."""
        q, k, v = (self._heads(w(x)) for w in (self.wq, self.wk, self.wv))  # (B, heads, L, head_dim)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)  # (B, heads, L, L)
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v  # (B, heads, L, head_dim)
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))  # (B, L, heads, head_dim)
        return heads.transpose(1, 2)


class TransformerBlock(nn.Module):
    """Attention and MLP, each after a norm and around a residual."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, dim)`` to the same."""
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Transformer(nn.Module):
    """Token and position embeddings, ``layers`` blocks, a final norm and a head over the vocabulary."""

    def __init__(
        self, vocabulary: int = 8, length: int = 16, dim: int = 16, layers: int = 2, heads: int = 4, tied: bool = True
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(length, dim)
        self.layers = nn.ModuleList(TransformerBlock(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, length)`` of int64 to logits ``(batch, length, vocabulary)``."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out
