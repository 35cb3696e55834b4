"""The paths of the server and the types of their bodies. `read_request` checks a body by the annotations of its type, and the OpenAPI
description is generated from them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import MinLen
from pydantic import Field
from starlette.exceptions import HTTPException

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import ListOf, OptionError, Size, Switch, Text, Words, field_rules, options, read, unknown_key
from uwaga._base.terminal import printable

# Keys that are ignored and change no number. LiteLLM's proxy adds the first two to the requests of its clients, such as Dify.
UNREAD_KEYS = ("metadata", "proxy_server_request", "user")
MAX_CHARACTERS = 1 << 18  # of a text; each may be a token, of 250 bytes of memory


class ApiError(HTTPException):
    """A request that is rejected, or failed.

    Attributes:
        param: the key of the request that is wrong.
        code: a word for programs.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one request, and of all requests together."""

    body_bytes: int = 4 << 20
    items: int = 2048  # texts of a request, as OpenAI's
    tokens: int = 1 << 18  # of a request
    seconds: float = 60.0  # until a request must be answered
    unread_keys: tuple[str, ...] = UNREAD_KEYS

    @property
    def all_bodies_bytes(self) -> int:
        """Return the bytes of bodies that are read, or whose requests are not answered."""
        return 16 * self.body_bytes

    @property
    def queue_tokens(self) -> int:
        """Return the size of all jobs that are not answered."""
        return 4 * self.tokens


def _doc(description: str) -> Any:
    """Return the annotation that describes a field."""
    return Field(description=description)


_Texts = Annotated[ListOf[Text], MinLen(1)]
_Model = Annotated[Text | None, _doc("May be left out.")]
_Truncate = Annotated[Switch | None, _doc("Read the beginning of texts longer than the model, in place of an error.")]


@options
class OpenAIEmbeddings:
    """The body of a request. The value of a key that is None is the server's or the model's."""

    input: Annotated[
        Text | _Texts,
        Words("a string, or a list of strings (in LangChain: check_embedding_ctx_length=False)"),
    ]
    model: _Model = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Size | None, _doc("Keep the first N dimensions of each vector.")] = None
    prompt_name: Annotated[Text | None, _doc("A prompt of the model, put before every text.")] = None
    truncate: _Truncate = None


@options
class CohereRerank:
    """The body of Cohere's and Jina's ranking requests."""

    query: Text
    documents: _Texts
    model: _Model = None
    top_n: Size | None = None
    return_documents: Switch = False
    truncate: _Truncate = None
    max_tokens_per_doc: Annotated[Size | None, _doc("Read only the first N tokens of each document.")] = None


Request = OpenAIEmbeddings | CohereRerank
POSTED: Mapping[str, type[Request]] = {  # paths that take a body, and its type
    "/v1/embeddings": OpenAIEmbeddings,
    "/v1/rerank": CohereRerank,
    "/v2/rerank": CohereRerank,
}
GOT = ("/v1/models", "/health", "/metrics", "/openapi.json")


class Texts(NamedTuple):
    """Texts of a request, and their names in errors."""

    key: str
    texts: Sequence[str]
    is_cut: bool  # whether texts that are longer than the model reads are truncated
    is_single: bool = False  # whether the value of the key is one text

    def place(self, number: int) -> str:
        return self.key if self.is_single else f"{self.key}[{number}]"


def read_request(path: str, body: bytes, unread_keys: Sequence[str] = UNREAD_KEYS) -> Request:
    """Return the request in a body; null counts as missing. Raises ApiError with the key."""
    try:
        table = untrusted.json_of(body, "the request")
    except CheckpointError as error:
        raise ApiError(422, str(error)) from error
    kind: Any = POSTED[path]
    rules = field_rules(kind)
    # Before pydantic reads the values, since it would make and keep an error of each unknown key.
    for key in table:
        if key not in rules and key not in unread_keys:
            message = (
                f"{unknown_key(printable(key), rules)}; the server's option --ignore-key lets a key through unread"
            )
            raise ApiError(422, message, param=printable(key))
    try:
        request: Request = read(kind, {key: table[key] for key in rules if table.get(key) is not None})
    except OptionError as error:
        raise ApiError(422, str(error), param=re.split(r"[.[]", error.path)[0]) from error
    return request


def texts_of(request: Request, key: str, limits: Limits, *, truncates: bool) -> Texts:
    """Return the texts of a field. Raises ApiError: too many, or one is empty or far too long.

    Args:
        request: the body.
        key: the name of the field.
        limits: the limits of requests.
        truncates: whether long texts are truncated if the request does not say.
    """
    value = getattr(request, key)
    texts = [value] if isinstance(value, str) else value
    if len(texts) > limits.items:
        raise ApiError(413, f"{key} has {len(texts):,} entries, more than the limit of {limits.items:,}", param=key)
    result = Texts(key, texts, truncates if request.truncate is None else request.truncate, isinstance(value, str))
    for number, text in enumerate(texts):
        if not text.strip():
            raise ApiError(422, f"{result.place(number)} is empty: it has no tokens", param=key)
        if len(text) > MAX_CHARACTERS:
            raise ApiError(413, f"{result.place(number)} has more than {MAX_CHARACTERS:,} characters", param=key)
    return result
