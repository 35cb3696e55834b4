"""What is in a page that `uwaga view --save` or `make_snapshot` has written."""

import base64
import gzip
import json
import re
from typing import Any

from uwaga.viewer.messages import Reply


def replies(page: bytes) -> dict[str, Reply]:
    """The stored replies by the key under which the page finds them."""
    match = re.search(rb'<script type="application/json" data-uwaga-saved>(.*?)</script>', page, re.DOTALL)
    assert match is not None
    read = {}
    for request, text in json.loads(match[1])["replies"].items():
        data = base64.b64decode(text, validate=True)
        read[request] = Reply.from_bytes(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return read


def about(stored: dict[str, Reply]) -> dict[str, Any]:
    return dict(stored['{"request":"about"}'].meta)
