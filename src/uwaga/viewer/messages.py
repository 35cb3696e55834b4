"""The messages between a page and Python: requests (JSON objects), their validation, and replies as bytes.

The key "ask" of a request holds its name, as in {"ask": "row", "side": "0", ...}. The bytes of a reply are the size n of
its header (4 bytes, little-endian), n bytes of JSON {"meta": ..., "arrays": [{"type", "shape"}, ...]} padded with spaces, and
then the arrays in order: little-endian, C-contiguous, each padded with zeros. Every part begins at a multiple of 8 bytes, so
that a browser reads the arrays in place, without a copy.
"""

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Request = Mapping[str, object]

_ALIGN = 8
_DTYPES = {"f4": "<f4", "i4": "<i4", "u1": "|u1"}
_TYPE_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


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

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def header(self) -> dict[str, Any]:
        """The JSON header: everything but the arrays' data."""
        arrays = [{"type": _TYPE_NAMES[array.dtype], "shape": list(array.shape)} for array in self.arrays]
        return {"meta": dict(self.meta), "arrays": arrays}

    def body(self) -> bytes:
        """The arrays' data, in the order of the header."""
        return b"".join(_padded(np.ascontiguousarray(array).tobytes(), b"\0") for array in self.arrays)

    def to_bytes(self) -> bytes:
        """Header and body, serialised."""
        text = json.dumps(self.header(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # A lone surrogate in a token has no UTF-8 encoding; its backslash escape is valid JSON.
        header = text.encode(errors="backslashreplace")
        header += b" " * (-(4 + len(header)) % _ALIGN)
        return len(header).to_bytes(4, "little") + header + self.body()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Reply":
        """The inverse of `to_bytes`, for Python clients and tests."""
        end = 4 + int.from_bytes(data[:4], "little")
        header, arrays, at = json.loads(data[4:end]), [], end
        for described in header["arrays"]:
            dtype, shape = np.dtype(_DTYPES[described["type"]]), described["shape"]
            size = math.prod(shape) * dtype.itemsize
            arrays.append(np.frombuffer(data[at : at + size], dtype).reshape(shape))
            at += size + -size % _ALIGN
        return cls(meta=header["meta"], arrays=tuple(arrays))


class Service(Protocol):
    """Answers the requests of a page. Thread-safe."""

    def answer(self, request: Request) -> Reply:
        """The reply. Raises RequestError."""
        ...

    def close(self) -> None:
        """Refuse all further requests."""
        ...


class RequestParser:
    """Validates the arguments of a request one by one, since a page's input is untrusted; `done` refuses unknown arguments.

    Attributes:
        ask: the name of the request.

    Raises:
        RequestError: from every method: an argument that is missing, of the wrong type or out of range, or unknown.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._read: set[str] = set()
        self.ask = self.text("ask")

    def text(self, name: str, choices: Sequence[str] | None = None) -> str:
        """A string; one of the choices where these are given."""
        value = self._value(name)
        if not isinstance(value, str):
            raise self.invalid(name, "a string", value)
        if choices is not None and value not in choices:
            raise self.invalid(name, f"one of {', '.join(choices)}", value)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or None where it is null."""
        value = self._value(name)
        if value is not None and not isinstance(value, str):
            raise self.invalid(name, "a string or null", value)
        return value

    def optional_object(self, name: str) -> dict[str, object] | None:
        """A JSON object, or None where it is null."""
        value = self._value(name)
        if value is not None and not isinstance(value, dict):
            raise self.invalid(name, "an object or null", value)
        return value

    def one_of(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of the choices; the default where it is missing."""
        return self.text(name, choices) if name in self._request else default

    def integer(self, name: str, low: int, high: int) -> int:
        """An integer with low <= value < high."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, "an integer", value)
        if not low <= value < high:
            rule = f"from {low} to {high - 1}" if low < high else f"in range({low}, {high}), which is empty"
            raise self.invalid(name, rule, value)
        return value

    def range(self, name: str, size: int) -> tuple[int, int]:
        """[a, b] with 0 <= a <= b <= size."""
        return self._pair(name, self._value(name), size)

    def ranges(self, name: str, size: int, max_count: int) -> list[tuple[int, int]]:
        """From 1 to `max_count` pairs [a, b], as `range`."""
        value = self._value(name)
        if not isinstance(value, list) or not 1 <= len(value) <= max_count:
            raise self.invalid(name, f"a list of 1 to {max_count} pairs [a, b]", value)
        return [self._pair(name, pair, size) for pair in value]

    def requests(self, name: str, max_count: int) -> list[dict[str, object]]:
        """A list of at most `max_count` requests."""
        value = self._value(name)
        if not isinstance(value, list) or len(value) > max_count or not all(isinstance(each, dict) for each in value):
            raise self.invalid(name, f"a list of at most {max_count} requests", value)
        return value

    def done(self) -> None:
        """Refuse arguments that no method has read."""
        for name in self._request:
            if name not in self._read:
                raise RequestError(f"{self.ask}: unknown argument {_short(name)}")

    def invalid(self, name: str, rule: str, value: object) -> RequestError:
        """The error for an argument that breaks a rule."""
        return RequestError(f"{self._title}: {name} must be {rule}, not {_short(value)}")

    @property
    def _title(self) -> str:
        """The request's name in messages."""
        ask = self._request.get("ask")
        return ask if isinstance(ask, str) and len(ask) <= 20 else "request"

    def _value(self, name: str) -> object:
        if name not in self._request:
            raise RequestError(f"{self._title}: {name} is missing")
        self._read.add(name)
        return self._request[name]

    def _pair(self, name: str, value: object, size: int) -> tuple[int, int]:
        rule = f"[a, b] with 0 <= a <= b <= {size}"
        if not isinstance(value, list) or len(value) != 2:
            raise self.invalid(name, rule, value)
        first, last = value
        if not all(isinstance(x, int) and not isinstance(x, bool) for x in value) or not 0 <= first <= last <= size:
            raise self.invalid(name, rule, value)
        return first, last


def _padded(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % _ALIGN)


_REPR = reprlib.Repr()  # bounded in depth and length
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def _short(value: object) -> str:
    text = _REPR.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
