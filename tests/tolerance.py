"""The derived tolerance (DESIGN.md, "Exactness") of what is compared with a peer, once for all tests but the conformance
suite, which has several peers."""

import torch
from torch import Tensor

# Errors are compared by their root mean square. That of n errors is itself a draw: relative to what they have in common,
# its standard deviation is 1 / sqrt(2 n), and that of a quotient of two, sqrt(1 / n). By three numbers,
# one peer in seven is twice as good as on the average; by forty, a quotient of 2 is four standard deviations off.
_ENOUGH = 40


def assert_as_exact(found: Tensor, peer: Tensor, exact: Tensor) -> None:
    """`found` is at most twice as far from the float64 result as the peer's own is, by their root mean square, and one
    unit of rounding beside it: where that is exact by chance, another order of sums may still round.

    Args:
        found, peer: of one dtype.
        exact: float64, of the same shape; at least 40 numbers, of as many draws as there are.
    """
    assert found.shape == exact.shape
    assert found.dtype == peer.dtype
    assert exact.dtype == torch.float64
    assert exact.numel() >= _ENOUGH, f"{exact.numel()} numbers: too few for the size of their errors to mean something"
    allowed = 2 * _rms(peer.double() - exact) + torch.finfo(found.dtype).eps * _rms(exact)
    error = _rms(found.double() - exact)
    assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}, of values of {_rms(exact):.3g}"


def _rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())
