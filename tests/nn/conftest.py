"""Tests of layers run on one thread."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """For every test here."""
