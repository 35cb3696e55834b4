"""Small tensors: a second thread would only wait. Ways of a call that tests close."""

import pytest

from uwaga.ops.attention import api, fast_path


@pytest.fixture
def without_short_way(monkeypatch: pytest.MonkeyPatch):
    """Call it, and calls that follow take the general way of attention."""
    return lambda: monkeypatch.setattr(fast_path, "attend", lambda *_: None)


@pytest.fixture
def without_validation(monkeypatch: pytest.MonkeyPatch):
    """Call it, and calls that follow fail where they validate their arguments."""
    return lambda: [monkeypatch.setattr(module, "make_call", None) for module in (api, fast_path)]
