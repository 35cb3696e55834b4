import pytest
from small_models import Small


@pytest.fixture(params=["gpt2", "transformers llama"])
def model(request: pytest.FixtureRequest) -> Small:
    """One model of this package and one of transformers; `parametrize("model", names, indirect=True)` names others."""
    return Small.of(request.param)
