"""The bounds of the suites besides that of the oracle (``suites/oracle/expected.py``), each with its derivation.

[Note: exact cases]
Weights, inputs and loss weights are integers of at most 2; the learning rate is 2**-3 and world sizes are powers of
two up to 4. Let a net have at most 4 linear layers in 2 blocks, dim 5, multiplier 3, and 2 steps. Every value
is then a dyadic rational: a sum of products of at most 4 weights and an input. After one step weights are multiples
of 2**-5 (learning rate and mean), so products of four of them are multiples of 2**-20, and with magnitudes below
2**31 every sum fits into the 53 bits of float64 in any order. So sharded and unsharded agree bit for bit.

A net of up to 6 layers runs one step: activations stay below 2**25 and gradients below 2**35, and before the step all
are integers, so parameters after it, multiples of 2**-5, fit too.

Float32 has 24 bits. There a net has one block and runs one step: activations stay below 2**13, losses below 2**19,
gradients below 2**16 and are multiples of 2**-2, updated parameters multiples of 2**-5, and every sum fits again.

[Note: exact scripts]
Scripts take at most ten acts, of which two are steps, and so at most three backwards a step, or five before one of two.
Their exact nets have two linear layers of dim 3 at most, each perhaps with its input added; a batch is three rows, and
momentum 2**-1. Let W bound the weights, then hidden values are at most 2 + 7W, outputs (2 + 7W)(1 + 3W) + W, and
gradients, summed over rows, 6(2 + 7W). From W = 2, three backwards at a rate of 2**-3 lead to W = 38, and three more
without zeroing to W = 695: outputs stay below 2**24, losses, which are sums of 9 outputs weighted by 2, below 2**28. At
the lower rate of 2**-4 and with the mean over four ranks, weights are multiples of 2**-6 and then 2**-12, products of
two of them of 2**-24. So 52 bits hold every sum; and 24 bits hold weights, gradients and momenta.
Scripts of more acts have six backwards at most, of which four or five may come before the first step: to W = 626.

[Note: reductions]
A backend may add the numbers of n ranks in any order, and round each sum or none but the last to the tensors' dtype:
each number goes through at most n - 1 roundings. An average or PREMUL_SUM adds two at most, one of the factor and one
of a product (a division is one). By section 4.2 of Higham the result is off by at most gamma(n + 1) · m with
gamma(k) = k · u / (1 - k · u) and m the sum of absolute values times the factor. The oracle adds in float64 and is off
by as much with u = 2**-53. Numbers are at least 2**-3 and at most 4 in size, so that nothing overflows, and what is
lost by flushing subnormals of float16, less than 2**-14, is less than is allowed.
"""

from __future__ import annotations

from torch import Tensor

from harness.data.comparison import Allowance


def norms(path: str, want: Tensor) -> Tensor:
    """What a norm in float64 of less than a thousand numbers, and a product with it, may differ: some roundings each.

    A sum of n positive numbers is off by less than n · 2**-53 of itself in any order; roots and powers add a few more.
    """
    return want.abs() * 2**-40


def reduction(ranks: int, unit: float, magnitudes: Tensor) -> Allowance:
    """What a reduction among so many ranks may differ from its oracle; see [Note: reductions].

    ``magnitudes`` holds, for each number of the result, the sum of the absolute values that it is made of.
    """
    roundings = ranks + 1
    allowed = magnitudes.double() * roundings * (unit / (1 - roundings * unit) + 2.0**-53)
    return lambda path, want: allowed
