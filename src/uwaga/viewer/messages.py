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
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from annotated_types import MaxLen
from numpy.typing import NDArray

from uwaga._base.languages import LANGUAGES
from uwaga._base.options import Integer, OptionError, Switch, Text, Words, options, read
from uwaga._base.terminal import printable, short
from uwaga._base.untrusted import check_json_depth

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
Kind = Literal["encoder", "decoder", "cross"]
Merge = Literal["tokens", "words"]
Specials = Literal["show", "hide"]
_Language = Annotated[Literal["en", "pl", "pt", "ja", "zh"], Words(f"one of {', '.join(LANGUAGES)}")]
_Pair = Annotated[tuple[Integer, Integer], Words("a pair [a, b] of whole numbers")]
_Example = Any  # uwaga.lessons.example declares and checks the parts of an example


# What each request says, beside its name. Which sides, heads and tokens there are depends on the text; the handlers check it.


@options
class AboutRequest:
    run: Integer | None = None  # the number of a text that was run; None: what the view opened with


@options
class LayerRequest(AboutRequest):
    side: Text
    kind: Kind
    layer: Integer


@options
class ShownRequest(LayerRequest):
    merge: Merge
    specials: Specials


@options
class OverviewRequest(ShownRequest):
    pooling: Literal["sum", "max"]


@options
class ItemsRequest(AboutRequest):
    side: Text
    stack: Text
    merge: Merge
    specials: Specials
    first: Integer
    count: Integer


@options
class ColumnRequest(ShownRequest):
    head: Integer
    key: Integer


@options
class RowRequest(ShownRequest):
    head: Integer
    query: Integer


@options
class EntryRequest(RowRequest):
    key: Integer


@options
class WhyRequest(EntryRequest):
    than: Integer | None
    by: Literal["pairs", "query", "key"]


@options
class TileRequest(OverviewRequest):
    head: Integer
    level: Integer
    row: Integer
    column: Integer


@options
class BlockRequest(ShownRequest):
    head: Integer
    rows: _Pair
    columns: _Pair


@options
class HeadsRequest(LayerRequest):
    axis: Literal["row", "column"]
    item: Integer


@options
class PredictionsRequest(AboutRequest):
    side: Text
    first: Integer
    count: Integer


@options
class RunTextRequest(AboutRequest):
    text: Text
    second: Text | None
    target: Text | None
    edits: dict[str, Any] | None
    long: Literal["first", "copyist"] | None = None


@options
class PageRequest(AboutRequest):
    exact: Annotated[list[dict[str, Any]], MaxLen(MAX_EXACT), Words(f"a list of at most {MAX_EXACT} requests")]
    language: _Language = "en"
    lesson: Switch = False


@options
class LessonRequest(AboutRequest):
    language: _Language = "en"
    text: _Example = None
    tokens: _Example = None
    x: _Example = None
    settings: _Example = None


REQUESTS: Mapping[str, type[AboutRequest]] = {
    "about": AboutRequest, "items": ItemsRequest, "overview": OverviewRequest, "tile": TileRequest, "entry": EntryRequest, "row": RowRequest, "column": ColumnRequest, "heads": HeadsRequest,
    "picture": AboutRequest, "statistics": LayerRequest, "labels": ShownRequest, "weights": BlockRequest, "npz": BlockRequest, "why": WhyRequest, "predictions": PredictionsRequest,
    "run": RunTextRequest, "stop": AboutRequest, "page": PageRequest, "lesson": LessonRequest,
}  # fmt: skip


class RequestParser:
    """The arguments of a request, which is untrusted: all are of the kinds that REQUESTS declares once it is made.

    Attributes:
        name: of the request.

    Raises:
        RequestError: an unknown request; an argument that is missing, unknown, of another kind or nested too deeply; from the
            methods one that is out of range.
    """

    def __init__(self, request: Request) -> None:
        name = request.get("request")
        if "request" not in request:
            raise RequestError('request: the key "request" is missing')
        if not isinstance(name, str):
            raise RequestError(f"request: request must be a string, not {short(name)}")
        if name not in REQUESTS:
            raise RequestError(f"{_title(name)}: request must be one of {', '.join(REQUESTS)}, not {short(name)}")
        self.name = name
        self._given = {key: value for key, value in request.items() if key != "request"}
        for key, value in self._given.items():
            try:
                check_json_depth(value)
            except RecursionError as error:
                raise RequestError(f"{name}: {printable(key)} is {error}") from error
        try:
            self._fields = read(REQUESTS[name], self._given)
        except OptionError as error:
            raise RequestError(f"{name}: {error}") from error

    def check_name(self, choices: Sequence[str]) -> None:
        """Raises RequestError: the request is another one."""
        if self.name not in choices:
            raise self.invalid("request", f"one of {', '.join(choices)}", self.name)

    def value(self, name: str) -> Any:
        """An argument as it is, or its default."""
        return getattr(self._fields, name)

    def values(self, *names: str) -> dict[str, Any]:
        """Those of these arguments that are there."""
        return {name: self._given[name] for name in names if name in self._given}

    def text(self, name: str, choices: Sequence[str]) -> str:
        """One of the choices."""
        value: str = self.value(name)
        if value not in choices:
            raise self.invalid(name, f"one of {', '.join(choices)}", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        """An integer with low <= value < high."""
        value: int = self.value(name)
        if not low <= value < high:
            rule = f"from {low} to {high - 1}" if low < high else f"in range({low}, {high}), which is empty"
            raise self.invalid(name, rule, value)
        return value

    def range(self, name: str, size: int) -> tuple[int, int]:
        """[a, b] with 0 <= a <= b <= size."""
        first, last = self.value(name)
        if not 0 <= first <= last <= size:
            raise self.invalid(name, f"[a, b] with 0 <= a <= b <= {size}", [first, last])
        return first, last

    def invalid(self, name: str, rule: str, value: object) -> RequestError:
        """The error for an argument that breaks a rule."""
        return RequestError(f"{self.name}: {name} must be {rule}, not {short(value)}")


def _title(name: str) -> str:
    """A request's name in messages."""
    return name if len(name) <= 20 else "request"


def _padded(data: bytes, filler: bytes) -> bytes:
    return data + filler * (-len(data) % _ALIGN)
