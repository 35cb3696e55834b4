"""What the tests of models share."""

import pytest


@pytest.fixture(scope="session")
def transformers():
    """The oracle."""
    return pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")
