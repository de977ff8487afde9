"""Text to learn from, made by a small grammar: words of letters, and verbs that agree in number with their subject."""

from __future__ import annotations

import random
import re

import torch
from torch import Tensor

GRAMMAR = {
    "sentence": [
        "<one> <verb>s <one>. ",
        "<many> <verb> <one>. ",
        "<one> <verb>s <many>. ",
        "<one> and <one> <verb>. ",
    ],
    "one": ["the <noun>", "the <adjective> <noun>", "a <noun> that <verb>s <many>"],
    "many": ["two <noun>s", "<adjective> <noun>s", "the <noun>s that <verb> <one>"],
    "noun": ["cat", "dog", "bird", "horse", "teacher", "river", "garden"],
    "adjective": ["small", "old", "green", "quiet"],
    "verb": ["see", "follow", "know", "help", "remember"],
}


def batch(step: int, sequences: int, length: int) -> Tensor:
    """The tokens of a step, int64 of shape (sequences, length + 1): bytes, the same wherever and whenever asked for."""
    draw = random.Random(step)
    return torch.tensor([list(_text(draw, length + 1)) for _ in range(sequences)])


def _text(draw: random.Random, length: int) -> bytes:
    text = ""
    while len(text) < length:
        text += _expanded("sentence", draw)
    return text[:length].encode("ascii")


def _expanded(rule: str, draw: random.Random) -> str:
    return re.sub(r"<(\w+)>", lambda found: _expanded(found[1], draw), draw.choice(GRAMMAR[rule]))
