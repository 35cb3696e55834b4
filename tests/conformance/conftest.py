"""One suite per abstraction: every engine, and the native one at the best instruction-set level that this machine has.

Where UWAGA_LEVEL names a level, the suite runs at that level alone: `make levels` at all below the best, `make emulate`.
"""

import os
from pathlib import Path

import pytest
import torch

from uwaga._base import env, native
from uwaga.maps.engines import available

_WHY_NOT_NATIVE = native.reason_unavailable()
if _WHY_NOT_NATIVE is not None and (env.level() or env.library()):  # asked for by name: to skip it would hide that
    raise pytest.UsageError(_WHY_NOT_NATIVE)
_DEVICE = os.environ.get("UWAGA_CONFORMANCE_DEVICE", "cpu")
if _DEVICE.startswith("cuda") and not torch.cuda.is_available():
    raise pytest.UsageError(
        f"UWAGA_CONFORMANCE_DEVICE={_DEVICE}: PyTorch sees no CUDA device (torch {torch.__version__})"
    )
# The fast tier has the native engine alone.
_OTHERS = (
    []
    if env.level()
    else [pytest.param(name, marks=pytest.mark.slow) for name in ("reference", "torch", "flex", "linear")]
)
_NATIVE = (
    [f"cpu-{native.level()}"]
    if _WHY_NOT_NATIVE is None
    else [pytest.param("cpu-none", marks=pytest.mark.skip(reason=_WHY_NOT_NATIVE))]
)
# The kernels of maps on a GPU: `make gpu`; in Triton's interpreter seconds for a case, so `make interpret` alone has them all.
_TRITON = ["triton"] if os.environ.get("UWAGA_INTERPRET") or _DEVICE.startswith("cuda") else []


def _use(name: str):
    """The engine's name for `impl`, with the level set while the test runs."""
    engine, _, level = name.partition("-")
    before = native.level() if level else None
    if level:
        native.set_level(level)
    yield engine
    if level:
        native.set_level(before)


@pytest.fixture(params=[*_OTHERS, *_NATIVE])
def engine(request: pytest.FixtureRequest):
    yield from _use(request.param)


@pytest.fixture(params=[*_OTHERS[:1], *(_NATIVE if "cpu" in available.NAMES else []), *_TRITON])
def map_engine(request: pytest.FixtureRequest):
    """The engines of maps."""
    yield from _use(request.param)


@pytest.fixture(params=_NATIVE)
def cpu(request: pytest.FixtureRequest):
    yield from _use(request.param)


@pytest.fixture(scope="session", autouse=True)
def _recorded_calls():
    """With UWAGA_RECORD_CALLS=folder: some of this suite's calls of the native library, as inputs of its fuzzer."""
    folder = os.environ.get("UWAGA_RECORD_CALLS")
    if not folder or _WHY_NOT_NATIVE is not None:
        yield
        return
    import recording

    functions = native.library().functions
    originals = {name: getattr(functions, name) for name in recording.FUNCTIONS}
    recorder = recording.Recorder(Path(folder))
    for name, function in originals.items():
        setattr(functions, name, recorder.wrapped(name, function))
    yield
    for name, function in originals.items():
        setattr(functions, name, function)
