"""Small tensors: a second thread would only wait."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `import linear_engines`: the tests are no package


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """For every test here."""
