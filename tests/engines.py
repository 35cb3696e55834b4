"""What tests of the native engine need."""

import pytest

from uwaga._base import native

needs_native = pytest.mark.skipif(native.reason_unavailable() is not None, reason=str(native.reason_unavailable()))
NATIVE = pytest.param("cpu", marks=needs_native)  # as an engine's name
