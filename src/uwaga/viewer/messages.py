"""The messages between a page and Python: a request is a JSON object, a reply is bytes.

The key "request" of a request holds its name, as in {"request": "row", "side": "0", ...}; `request_table.py` has the names and their
arguments. The bytes of a reply are the size n of
its header (4 bytes, little-endian), n bytes of JSON {"meta": ..., "arrays": [{"type", "shape"}, ...]} padded with spaces, and
then the arrays in order: little-endian, C-contiguous, each padded with zeros. Every part begins at a multiple of 8 bytes, so
that a browser reads the arrays in place, without a copy.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Request = Mapping[str, object]

_ALIGN = 8
_TYPE_NAMES = {np.dtype("<f4"): "f4", np.dtype("<i4"): "i4", np.dtype("u1"): "u1"}


class RequestError(ValueError):
    """A request that cannot be answered; the message is shown to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a request.

    meta: JSON values, without NaN and infinity.
    arrays: float32, int32 or uint8, of any shape.
    """

    meta: Mapping[str, Any]
    arrays: tuple[NDArray[Any], ...] = ()

    def header(self) -> dict[str, Any]:
        """Return the JSON header: everything except the arrays' data."""
        arrays = [{"type": _TYPE_NAMES[array.dtype], "shape": list(array.shape)} for array in self.arrays]
        return {"meta": dict(self.meta), "arrays": arrays}

    def body(self) -> bytes:
        """Return the arrays' data, in the order of the header."""
        parts = (np.ascontiguousarray(array).tobytes() for array in self.arrays)
        return b"".join(part + bytes(-len(part) % _ALIGN) for part in parts)

    def to_bytes(self) -> bytes:
        """Return header and body as bytes."""
        text = json.dumps(self.header(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # A lone surrogate in a token has no UTF-8 encoding; its backslash escape is valid JSON.
        header = text.encode(errors="backslashreplace")
        header += b" " * (-(4 + len(header)) % _ALIGN)
        return len(header).to_bytes(4, "little") + header + self.body()


class Service(Protocol):
    """Answers the requests of a page. Thread-safe."""

    def answer(self, request: Request) -> Reply:
        """Return the reply. Raises RequestError."""
        ...

    def close(self) -> None:
        """Reject all further requests."""
        ...


def finite(value: float) -> float | None:
    """Return a number as JSON has it: None, which becomes null, for NaN and infinity."""
    return value if math.isfinite(value) else None
