import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `import pretended_gpu`: the tests are no package


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """Tensors on "cuda" that are in the host's memory."""
    from pretended_gpu import pretended_gpu

    with pretended_gpu(monkeypatch) as pretended:
        yield pretended
