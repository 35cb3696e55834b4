import os
from types import SimpleNamespace

import pytest

_IS_REAL = os.environ.get("UWAGA_CONFORMANCE_DEVICE", "cpu").startswith("cuda")  # `make gpu`


def pytest_itemcollected(item: pytest.Item) -> None:
    if _IS_REAL:
        item.add_marker(pytest.mark.slow)  # kernels are compiled


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """What knows which tensors are on "cuda": a GPU, or one that is pretended, whose tensors are in the host's memory."""
    if _IS_REAL:
        yield SimpleNamespace(has=lambda x: x.is_cuda, is_real=True)
        return
    from pretended_gpu import pretended_gpu

    with pretended_gpu(monkeypatch) as pretended:
        yield pretended
