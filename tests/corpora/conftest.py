import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Tensors are tiny."""


@pytest.fixture(autouse=True)
def _own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped weights of this test alone."""
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path_factory.mktemp("data")))
