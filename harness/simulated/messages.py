"""What a rank of simulated devices sends its peers for a collective."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Part:
    """What a rank brings to a collective: when it is ready, in µs, what has to agree, its inputs, and how many outputs.

    ``finished`` is how many collectives of the group it has finished: what was sent for those has arrived.
    """

    ready: float
    words: list[str]
    inputs: list[Tensor]
    outputs: int
    finished: int

    def message(self) -> Tensor:
        """As bytes: a line of JSON, and the numbers."""
        shapes = [[str(tensor.dtype).removeprefix("torch."), *tensor.shape] for tensor in self.inputs]
        line = json.dumps([self.ready, self.words, shapes, self.outputs, self.finished]).encode() + b"\n"
        parts = [torch.frombuffer(bytearray(line), dtype=torch.uint8)]
        parts += [tensor.contiguous().view(-1).view(torch.uint8) for tensor in self.inputs if tensor.numel()]
        return torch.cat(parts)

    @classmethod
    def of(cls, message: Tensor) -> Part:
        """Read one."""
        line, _, rest = message.numpy().tobytes().partition(b"\n")
        ready, words, shapes, outputs, finished = json.loads(line)
        inputs, begin = [], 0
        for name, *shape in shapes:
            dtype = getattr(torch, name)
            size = torch.Size(shape).numel() * dtype.itemsize
            numbers = (
                torch.frombuffer(bytearray(rest[begin : begin + size]), dtype=dtype)
                if size
                else torch.empty(0, dtype=dtype)
            )
            inputs.append(numbers.view(shape))
            begin += size
        return cls(ready, words, inputs, outputs, finished)
