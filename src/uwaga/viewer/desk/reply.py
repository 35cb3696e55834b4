"""What the desk gives back: a few facts and some arrays, and both as bytes.

The bytes are a number n (4 bytes, little-endian), n bytes of JSON {"meta": ..., "arrays": [{"type", "shape"}, ...]} padded by
spaces, and the arrays one after the other, little-endian, the last axis fastest, each padded by zeros; every part begins at
a multiple of 8, so that a browser reads the arrays where they lie.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGN = 8
_TYPES = {"f4": "<f4", "i4": "<i4", "u1": "|u1"}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}


class QuestionError(ValueError):
    """A question that cannot be answered; the message is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer.

    meta: what JSON can hold, without nan and infinity.
    arrays: float32, int32 or uint8, of any shape.
    """

    meta: Mapping[str, Any]
    arrays: tuple[NDArray[Any], ...] = ()

    @property
    def nbytes(self) -> int:
        """Of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def header(self) -> dict[str, Any]:
        """Everything but the arrays' numbers."""
        arrays = [{"type": _NAMES[array.dtype], "shape": list(array.shape)} for array in self.arrays]
        return {"meta": dict(self.meta), "arrays": arrays}

    def body(self) -> bytes:
        """The arrays' numbers, as they follow the header."""
        return b"".join(_padded(np.ascontiguousarray(array).tobytes(), b"\0") for array in self.arrays)

    def to_bytes(self) -> bytes:
        """Header and body."""
        text = json.dumps(self.header(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # Half of a surrogate pair in a token has no bytes; its escape is JSON.
        header = text.encode(errors="backslashreplace")
        header += b" " * (-(4 + len(header)) % _ALIGN)
        return len(header).to_bytes(4, "little") + header + self.body()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Reply":
        """The reverse of to_bytes; for programs that ask as a page does, and for tests."""
        end = 4 + int.from_bytes(data[:4], "little")
        header, arrays, at = json.loads(data[4:end]), [], end
        for described in header["arrays"]:
            kind, shape = np.dtype(_TYPES[described["type"]]), described["shape"]
            size = math.prod(shape) * kind.itemsize
            arrays.append(np.frombuffer(data[at : at + size], kind).reshape(shape))
            at += size + -size % _ALIGN
        return cls(meta=header["meta"], arrays=tuple(arrays))


def _padded(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % _ALIGN)
