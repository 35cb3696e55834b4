"""What is in a page that `uwaga view --save` or `make_snapshot` has written."""

import base64
import gzip
import json
import math
import re
from typing import Any

import numpy as np

from uwaga.viewer.messages import Reply


def read_reply(data: bytes) -> Reply:
    """The reply that these bytes are, as `front/wire.js` reads it."""
    end = 4 + int.from_bytes(data[:4], "little")
    header, arrays, at = json.loads(data[4:end]), [], end
    for described in header["arrays"]:
        dtype, shape = np.dtype({"f4": "<f4", "i4": "<i4", "u1": "|u1"}[described["type"]]), described["shape"]
        size = math.prod(shape) * dtype.itemsize
        arrays.append(np.frombuffer(data[at : at + size], dtype).reshape(shape))
        at += size + -size % 8
    return Reply(meta=header["meta"], arrays=tuple(arrays))


def replies(page: bytes) -> dict[str, Reply]:
    """The stored replies by the key under which the page finds them."""
    match = re.search(rb'<script type="application/json" data-uwaga-saved>(.*?)</script>', page, re.DOTALL)
    assert match is not None
    read = {}
    for request, text in json.loads(match[1])["replies"].items():
        data = base64.b64decode(text, validate=True)
        read[request] = read_reply(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return read


def about(stored: dict[str, Reply]) -> dict[str, Any]:
    return dict(stored['{"request":"about"}'].meta)
