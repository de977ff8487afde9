"""A decoder of bytes: blocks of attention and a multi-layer perceptron, each recomputed in backward."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

#: Layers, width and length of sequences. The first has 100 million parameters.
SIZES = {"100m": (12, 832, 64), "small": (2, 64, 32)}
HEAD_WIDTH = 32


class Block(nn.Module):
    """Attention to what came before, then a perceptron; (sequences, length, width) in and out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the input only, and compute the rest again in backward."""
        output: Tensor = checkpoint(self._output, x, use_reentrant=False)
        return output

    def _output(self, x: Tensor) -> Tensor:
        heads = self.mixed(self.before_attention(x)).unflatten(-1, (3, -1, HEAD_WIDTH))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).flatten(2))
        more: Tensor = self.narrow(gelu(self.wide(self.before_perceptron(x))))
        return x + more


class Decoder(nn.Module):
    """How well each byte of int64 tokens of shape (sequences, length + 1) is foreseen: the mean loss, float32."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.bytes, self.positions = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.last, self.scores = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        """The cross entropy of the byte that comes after each."""
        x = self.bytes(tokens[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.scores(self.last(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())
