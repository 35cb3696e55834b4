"""Every environment variable: unset, empty, set, wrong."""

import os
from pathlib import Path

import pytest

from uwaga._base import env


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_unset_and_empty_mean_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        for name in env.VARIABLES:
            if value is not None:
                monkeypatch.setenv(name, value)
        assert env.level() is None
        assert env.library() is None
        assert env.threads() is None
        assert env.data() == Path.home() / ".cache" / "uwaga"


def test_threads_sleep_while_they_wait_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ((None, ""), ("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "1000"), ("KMP_BLOCKTIME", "1")):
        for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
            monkeypatch.delenv(variable, raising=False)
        if name is not None:
            monkeypatch.setenv(name, value)
        before = dict(os.environ)
        env.wait_asleep()
        assert os.environ == (before | {"OMP_WAIT_POLICY": "passive"} if name is None else before)


def test_values_are_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"LEVEL": "avx2", "LIBRARY": "/x/y.so", "DATA": "~/z", "THREADS": "3"}
    for name, value in values.items():
        monkeypatch.setenv(f"UWAGA_{name}", value)
    assert (env.level(), env.library(), env.data(), env.threads()) == ("avx2", Path("/x/y.so"), Path.home() / "z", 3)

    monkeypatch.setenv("UWAGA_THREADS", "9" * 5000)
    with pytest.raises(ValueError, match="from 1 to 4096"):
        env.threads()
