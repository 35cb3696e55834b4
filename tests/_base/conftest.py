from collections.abc import Callable, Iterator

import pytest

from uwaga._base import native


@pytest.fixture
def load_again() -> Iterator[Callable[[], None]]:
    """Forget the native library that was loaded, now and after the test; call it to forget it once more."""
    forget = native.load.cache_clear
    forget()
    yield forget
    forget()
