"""Small tensors: a second thread would only wait."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """For every test here."""
