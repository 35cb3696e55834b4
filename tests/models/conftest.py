"""What the tests of models share: checkpoints that transformers wrote, one thread, the derived tolerance (DESIGN.md)."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """For every test here."""


@pytest.fixture(scope="session")
def transformers():
    """The oracle."""
    return pytest.importorskip("transformers", reason="transformers is not installed: the extra `test` brings it")
