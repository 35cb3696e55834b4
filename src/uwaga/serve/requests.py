"""The paths of the server and the types of their bodies. `read_body` checks a body by the annotations of its type, and the OpenAPI
description is generated from them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, MinLen
from pydantic import BeforeValidator, Field, WithJsonSchema

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import (
    Integer,
    ListOf,
    OptionError,
    Size,
    Switch,
    Text,
    Words,
    field_rules,
    options,
    read,
    unknown_key,
)
from uwaga._base.terminal import printable

# Keys that are ignored and change no number. LiteLLM's proxy adds them to the requests of its clients, such as Dify.
UNREAD_KEYS = ("metadata", "proxy_server_request")
# Keys of the interfaces that are rejected, and what to do instead.
_INSTEAD = {
    "input_type": "there is no key input_type; prompt_name names a prompt of the model",
    "rank_fields": "there is no key rank_fields; write the fields of a document into one text, and send that",
}


@dataclass(eq=False)
class ApiError(Exception):
    """A request that is rejected, or failed."""

    status: int  # of HTTP
    message: str  # for people
    param: str | None = None  # the key of the request that is wrong
    code: str | None = None  # a word for programs
    headers: Mapping[str, str] = field(default_factory=dict)  # of the response


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one request, and of all requests together."""

    body_bytes: int = 4 << 20
    items: int = 2048  # texts of a request, as OpenAI's
    tokens: int = 1 << 18  # of a request
    queue_requests: int = 1024
    queue_items: int = 1 << 15
    queue_tokens: int = 1 << 20
    all_bodies_bytes: int = 64 << 20  # of bodies that are read, or whose requests are not answered
    seconds: float = 60.0  # until a request must be answered
    body_seconds: float = 10.0  # until the body of a request must have arrived
    unread_keys: tuple[str, ...] = UNREAD_KEYS


_Texts = Annotated[ListOf[Text], MinLen(1)]
_Ids = Annotated[ListOf[Annotated[Integer, Ge(0)]], MinLen(1)]
_Input = Annotated[
    Text | _Texts | _Ids | Annotated[ListOf[_Ids], MinLen(1)],
    Words("a string or a list that is not empty, of strings, of token ids or of lists of token ids"),
]


def _doc(description: str) -> Any:
    """Return the annotation that describes a field."""
    return Field(description=description)


def _text_of(passage: object) -> object:
    return passage["text"] if isinstance(passage, dict) and passage.keys() == {"text"} else passage


# pydantic would make an error of each key of an object, and a body may have 500,000 of them. So `_text_of` takes the text out first.
_OBJECT = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
_Passage = Annotated[
    Text,
    BeforeValidator(_text_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, _OBJECT]}),
    Words("a string or an object with a text"),
]
_Truncate = Annotated[Switch | None, _doc("Read the beginning of texts longer than the model, in place of an error.")]
_Direction = Annotated[
    Literal["Left", "left", "Right", "right"] | None,
    _doc("With truncate, no other than the side on which the model's directory truncates."),
]


_Model = Annotated[Text | None, _doc("May be left out.")]
_Prompt = Annotated[Text | None, _doc("A prompt of the model, put before every text.")]
_Dimensions = Annotated[Size | None, _doc("Keep the first N dimensions of each vector.")]


@options
class OpenAIEmbeddings:
    """The body of a request. The value of a key that is None is the server's or the model's.

    Attributes:
        key: the field with the texts.
        truncation_key: the field that says whether long texts are truncated.
    """

    key, truncation_key = "input", "truncate"
    input: _Input
    model: _Model = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: _Dimensions = None
    prompt_name: _Prompt = None
    truncate: _Truncate = None
    user: Annotated[Text | None, _doc("Not read.")] = None


@options
class TeiEmbeddings:
    key, truncation_key = "inputs", "truncate"
    inputs: _Input
    model: _Model = None
    normalize: Annotated[Switch, _doc("Vectors of length 1.")] = True
    dimensions: _Dimensions = None
    prompt_name: _Prompt = None
    truncate: _Truncate = None
    truncation_direction: _Direction = None


@options
class CohereRerank:
    """The body of Cohere's and Jina's ranking requests."""

    key, truncation_key = "documents", "truncation"
    query: Text
    documents: Annotated[ListOf[_Passage], MinLen(1)]
    model: _Model = None
    top_n: Size | None = None
    return_documents: Switch = False
    truncation: _Truncate = None
    max_tokens_per_doc: Annotated[Size | None, _doc("Read only the first N tokens of each document.")] = None
    max_chunks_per_doc: Annotated[
        Size | None, _doc("Divide each document into at most N chunks; its score is the best chunk's score.")
    ] = None


@options
class TeiRerank:
    key, truncation_key = "texts", "truncate"
    query: Text
    texts: Annotated[ListOf[_Passage], MinLen(1)]
    model: _Model = None
    return_text: Switch = False
    raw_scores: Switch = False
    truncate: _Truncate = None
    truncation_direction: _Direction = None


Request = OpenAIEmbeddings | TeiEmbeddings | CohereRerank | TeiRerank
# Paths that take a body, what they do, and the types of the body. If the key of the texts decides nothing, the first type counts.
POSTED: Mapping[str, tuple[str, tuple[type[Request], ...]]] = {
    "/v1/embeddings": ("Vectors of texts, as OpenAI's.", (OpenAIEmbeddings,)),
    "/embed": ("Vectors of texts, as TEI's, with errors in its form.", (TeiEmbeddings,)),
    "/v1/rerank": ("Passages by their relevance to a query, as Cohere's and Jina's.", (CohereRerank, TeiRerank)),
    "/v2/rerank": ("The same.", (CohereRerank, TeiRerank)),
    "/rerank": ("The same, as TEI's, with errors in its form.", (TeiRerank, CohereRerank)),
}
# Paths without a body, and whether they need a key.
GOT: Mapping[str, tuple[str, bool]] = {
    "/v1/models": ("The model that is served, as OpenAI's.", True),
    "/health": ("Whether the server answers, and what waits.", False),
    "/metrics": ("Numbers for Prometheus.", True),
    "/openapi.json": ("This description.", False),
    "/docs": ("This page.", False),
}
# Why a request has no answer, by status, and the names of such an error at OpenAI and TEI.
ERRORS: Mapping[int, tuple[str, str, str]] = {
    401: ("the key is missing or wrong", "authentication_error", "Validation"),
    404: ("there is no such path or model", "invalid_request_error", "Validation"),
    405: ("the path takes another method", "invalid_request_error", "Validation"),
    408: ("the body did not arrive in time", "invalid_request_error", "Validation"),
    413: ("a body, a list, a text or all texts together are too long", "invalid_request_error", "Tokenizer"),
    415: ("the body is not application/json", "invalid_request_error", "Validation"),
    422: ("the body is not what the schema says", "invalid_request_error", "Validation"),
    429: ("the queue is full; Retry-After says when to retry", "rate_limit_error", "Overloaded"),
    431: ("URL and headers are too long", "invalid_request_error", "Validation"),
    500: ("internal error", "server_error", "Backend"),
    504: ("not answered in time", "server_error", "Validation"),
}


class Texts(NamedTuple):
    """Texts of a request, and their names in errors."""

    key: str
    texts: Sequence[Any]  # strings, or lists of token ids
    truncation_key: str
    is_cut: bool  # whether texts that are longer than the model reads are truncated
    places: Sequence[str]  # the name of each text


def read_body(path: str, body: bytes, unread_keys: Sequence[str] = UNREAD_KEYS) -> Request:
    """Return the request in a body; null counts as missing. Raises ApiError with the key."""
    try:
        table = untrusted.json_of(body, "the request")
    except CheckpointError as error:
        raise ApiError(422, str(error)) from error
    kind: Any = max(POSTED[path][1], key=lambda body_type: body_type.key in table)
    rules = field_rules(kind)
    # Before pydantic reads the values, since it would make and keep an error of each unknown key.
    for key in table:
        if key not in rules and key not in unread_keys:
            why = _INSTEAD.get(key) or unknown_key(printable(key), rules)
            message = f"{why}; the server's option --ignore-key lets a key through unread"
            raise ApiError(422, message, param=printable(key))
    try:
        request: Request = read(kind, {key: table[key] for key in rules if table.get(key) is not None})
    except OptionError as error:
        raise ApiError(422, str(error), param=re.split(r"[.[]", error.path)[0]) from error
    return request


def texts_of(request: Request, key: str, limits: Limits, *, truncates: bool, from_left: bool) -> Texts:
    """Return the texts of a field. Raises ApiError: too many, or a wrong truncation_direction.

    Args:
        request: the body.
        key: the name of the field.
        limits: the limits of requests.
        truncates: whether long texts are truncated if the request does not say.
        from_left: whether truncation removes the beginning of a text.
    """
    value, cut = getattr(request, key), getattr(request, request.truncation_key)
    is_single, is_cut = isinstance(value, str) or isinstance(value[0], int), truncates if cut is None else cut
    texts = [value] if is_single else value
    if len(texts) > limits.items:
        raise ApiError(413, f"{key} has {len(texts):,} entries, more than the limit of {limits.items:,}", param=key)
    side, direction = "Left" if from_left else "Right", getattr(request, "truncation_direction", None)
    if is_cut and direction is not None and direction.title() != side:
        message = f"truncation_direction must be '{side}', the side on which this model's directory truncates, not '{direction}'; leave it out, or cut the text yourself"
        raise ApiError(422, message, param="truncation_direction")
    places = [key] if is_single else [f"{key}[{number}]" for number in range(len(texts))]
    return Texts(key, texts, request.truncation_key, is_cut, places)
