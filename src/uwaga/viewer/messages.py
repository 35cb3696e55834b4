"""The messages between a page and Python: requests (JSON objects), their validation, and replies as bytes.

REQUESTS declares the arguments of each request; RequestParser checks them all before anything is computed. What is inside "edits" is
checked by `uwaga.inspect.edits.Edits.from_dict`, and the numbers of a lesson by `uwaga.lessons.example`.

The key "request" of a request holds its name, as in {"request": "row", "side": "0", ...}. The bytes of a reply are the size n of
its header (4 bytes, little-endian), n bytes of JSON {"meta": ..., "arrays": [{"type", "shape"}, ...]} padded with spaces, and
then the arrays in order: little-endian, C-contiguous, each padded with zeros. Every part begins at a multiple of 8 bytes, so
that a browser reads the arrays in place, without a copy.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from uwaga._base.languages import LANGUAGES
from uwaga._base.terminal import short
from uwaga._base.untrusted import check_json_depth
from uwaga._base.validators import OptionValidator
from uwaga.viewer.view_model import KINDS

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


MAX_EXACT = 512  # requests, such as for tiles, whose exact replies a page adds to its snapshot
MERGES = ("tokens", "words")
SPECIALS = ("show", "hide")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_integer, value))


def _one_of(*names: str) -> OptionValidator:
    return OptionValidator(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


_TEXT = OptionValidator("a string", lambda value: isinstance(value, str))
_TEXT_OR_NULL = OptionValidator("a string or null", lambda value: value is None or isinstance(value, str))
_OBJECT_OR_NULL = OptionValidator("an object or null", lambda value: value is None or isinstance(value, dict))
_INTEGER = OptionValidator("an integer", _is_integer)
_BOOLEAN = OptionValidator("true or false", lambda value: isinstance(value, bool))
_INTEGER_OR_NULL = OptionValidator("an integer or null", lambda value: value is None or _is_integer(value))
_PAIR = OptionValidator("a pair [a, b] of integers", _is_pair)
_REQUESTS = OptionValidator(
    f"a list of at most {MAX_EXACT} requests",
    lambda value: isinstance(value, list) and len(value) <= MAX_EXACT and all(isinstance(each, dict) for each in value),
)
_RUN = OptionValidator("the number of a text that was run", lambda value: value is None or _is_integer(value))
_LONG = OptionValidator("null, first or copyist", lambda value: value in (None, "first", "copyist"))
_LANGUAGE = _one_of(*LANGUAGES)
_EXAMPLE = OptionValidator(
    "a part of an example", lambda value: True
)  # uwaga.lessons.example declares and checks these

_LAYER = {"side": _TEXT, "kind": _one_of(*KINDS), "layer": _INTEGER}
_SHOWN = {"merge": _one_of(*MERGES), "specials": _one_of(*SPECIALS)}
_HEAD = {**_LAYER, "head": _INTEGER, **_SHOWN}
_POOLING = {"pooling": _one_of("sum", "max")}
_BLOCK = {**_HEAD, "rows": _PAIR, "columns": _PAIR}

# What each request says, beside its name and, where it is not about what the view opened with, the number "run" of its text.
# Which sides, heads and tokens there are depends on the text; the handlers check it.
REQUESTS: Mapping[str, Mapping[str, OptionValidator]] = {
    "about": {},
    "items": {"side": _TEXT, "stack": _TEXT, **_SHOWN, "first": _INTEGER, "count": _INTEGER},
    "overview": {**_LAYER, **_SHOWN, **_POOLING},
    "tile": {**_HEAD, **_POOLING, "level": _INTEGER, "row": _INTEGER, "column": _INTEGER},
    "entry": {**_HEAD, "query": _INTEGER, "key": _INTEGER},
    "row": {**_HEAD, "query": _INTEGER},
    "column": {**_HEAD, "key": _INTEGER},
    "heads": {**_LAYER, "axis": _one_of("row", "column"), "item": _INTEGER},
    "picture": {},
    "statistics": _LAYER,
    "labels": {**_LAYER, **_SHOWN},
    "weights": _BLOCK,
    "npz": _BLOCK,
    "why": {
        **_HEAD,
        "query": _INTEGER,
        "key": _INTEGER,
        "than": _INTEGER_OR_NULL,
        "by": _one_of("pairs", "query", "key"),
    },
    "predictions": {"side": _TEXT, "first": _INTEGER, "count": _INTEGER},
    "run": {"text": _TEXT, "second": _TEXT_OR_NULL, "target": _TEXT_OR_NULL, "edits": _OBJECT_OR_NULL, "long": _LONG},
    "stop": {},
    "page": {"exact": _REQUESTS, "language": _LANGUAGE, "lesson": _BOOLEAN},
    "lesson": {"language": _LANGUAGE, "text": _EXAMPLE, "tokens": _EXAMPLE, "x": _EXAMPLE, "settings": _EXAMPLE},
}
_MAY_BE_MISSING = {"run": ("long",), "page": ("language", "lesson"), "lesson": tuple(REQUESTS["lesson"])}


class RequestParser:
    """The arguments of a request, which is untrusted: all are of the kinds that REQUESTS declares once it is made.

    Attributes:
        name: of the request.

    Raises:
        RequestError: an unknown request; an argument that is missing, unknown, of another kind or nested too deeply; from the
            methods one that is out of range.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        if "request" not in request:
            raise RequestError('request: the key "request" is missing')
        self.name: str = self._checked("request", _TEXT)
        if self.name not in REQUESTS:
            raise self.invalid("request", f"one of {', '.join(REQUESTS)}", self.name)
        kinds = REQUESTS[self.name]
        for name in request:
            if name not in ("request", "run", *kinds):
                raise RequestError(f"{self.name}: unknown argument {short(name)}")
        for name, kind in (("run", _RUN), *kinds.items()):
            if name in request:
                self._checked(name, kind)
            elif name != "run" and name not in _MAY_BE_MISSING.get(self.name, ()):
                raise RequestError(f"{self.name}: {name} is missing")

    def value(self, name: str) -> Any:
        """An argument as it is; None where it is missing."""
        return self._request.get(name)

    def values(self, *names: str) -> dict[str, Any]:
        """Those of these arguments that are there."""
        return {name: self._request[name] for name in names if name in self._request}

    def text(self, name: str, choices: Sequence[str]) -> str:
        """One of the choices."""
        value: str = self._request[name]  # type: ignore[assignment]
        if value not in choices:
            raise self.invalid(name, f"one of {', '.join(choices)}", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        """An integer with low <= value < high."""
        value: int = self._request[name]  # type: ignore[assignment]
        if not low <= value < high:
            rule = f"from {low} to {high - 1}" if low < high else f"in range({low}, {high}), which is empty"
            raise self.invalid(name, rule, value)
        return value

    def range(self, name: str, size: int) -> tuple[int, int]:
        """[a, b] with 0 <= a <= b <= size."""
        return self._pair(name, self.value(name), size)

    def invalid(self, name: str, rule: str, value: object) -> RequestError:
        """The error for an argument that breaks a rule."""
        return RequestError(f"{self._title}: {name} must be {rule}, not {short(value)}")

    @property
    def _title(self) -> str:
        """The request's name in messages."""
        name = self._request.get("request")
        return name if isinstance(name, str) and len(name) <= 20 else "request"

    def _checked(self, name: str, kind: OptionValidator) -> Any:
        value = self._request[name]
        if not kind.accepts(value):
            raise self.invalid(name, kind.words, value)
        try:
            check_json_depth(value)
        except RecursionError as error:
            raise RequestError(f"{self._title}: {name} is {error}") from error
        return value

    def _pair(self, name: str, pair: Sequence[int], size: int) -> tuple[int, int]:
        first, last = pair
        if not 0 <= first <= last <= size:
            raise self.invalid(name, f"[a, b] with 0 <= a <= b <= {size}", pair)
        return first, last


def _padded(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % _ALIGN)
