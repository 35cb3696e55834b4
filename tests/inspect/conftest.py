import pytest
import torch
from small_models import Small
from torch import Tensor


@pytest.fixture(params=["gpt2", "transformers llama"])
def model(request: pytest.FixtureRequest) -> Small:
    """One model of this package and one of transformers; `parametrize("model", names, indirect=True)` names others."""
    return Small.of(request.param)


@pytest.fixture
def exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention casts its softmax to float32, also in the float64 copy that says what is right."""
    softmax = torch.nn.functional.softmax

    def of_its_own_dtype(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

    monkeypatch.setattr(torch.nn.functional, "softmax", of_its_own_dtype)
