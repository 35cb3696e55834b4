"""What the tests of layers share: one thread for small tensors, and the derived tolerance (DESIGN.md, "Exactness")."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def assert_as_exact() -> Callable[[Tensor, Tensor, Tensor], None]:
    """`found` is at most twice as far from the float64 result as PyTorch's own float32 result is, by their root mean
    square, and one unit of rounding beside it: where PyTorch happens to be exact, another order of sums may still round."""

    def check(found: Tensor, peer: Tensor, exact: Tensor) -> None:
        assert found.shape == exact.shape
        assert exact.dtype == torch.float64
        allowed = 2 * _rms(peer.double() - exact) + torch.finfo(found.dtype).eps * _rms(exact)
        error = _rms(found.double() - exact)
        assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}, of values of {_rms(exact):.3g}"

    return check


def _rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())
