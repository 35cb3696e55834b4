"""The replies and request keys in the fixtures of the front end's unit tests are the bytes that Python writes."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uwaga.viewer.messages import Reply
from uwaga.viewer.page.bundle import FRONT

pytestmark = pytest.mark.slow

KEPT = json.loads((Path(FRONT) / "tests" / "wire.json").read_text(encoding="utf-8"))
_TYPES = {"Float32Array": np.float32, "Int32Array": np.int32, "Uint8Array": np.uint8}


@pytest.mark.parametrize("kept", KEPT["replies"])
def test_replies_equal_the_bytes_of_the_fixture(kept: dict[str, Any]) -> None:
    arrays = tuple(
        np.array([np.nan if value is None else value for value in values], _TYPES[name]).reshape(shape)
        for name, shape, values in kept["arrays"]
    )
    assert Reply(meta=kept["meta"], arrays=arrays).to_bytes() == base64.b64decode(kept["base64"])


@pytest.mark.parametrize("kept", KEPT["requests"])
def test_requests_have_the_keys_of_the_fixture(kept: dict[str, Any]) -> None:
    name = json.dumps(kept["request"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert name == kept["name"]
