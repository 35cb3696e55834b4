"""The paths of the server and the bodies that they take, each declared once: `read_body` checks a body by the annotations of its type, and
the OpenAPI description is made of them."""

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

# Keys that change no number and that nothing reads: LiteLLM's proxy adds them to what its clients send, Dify among them.
UNREAD_KEYS = ("metadata", "proxy_server_request")
# Keys of the interfaces that are refused, and what to do instead.
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

    def __str__(self) -> str:
        return self.message


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
    body_seconds: float = 10.0  # until its body must have arrived
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


# Objects are taken apart before pydantic reads them: it makes an error of each key, of which a body may have 500,000.
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
_Dimensions = Annotated[Size | None, _doc("Only the first so many numbers of each vector.")]


@options
class OpenAIEmbeddings:
    """The body of a request. None: as the server or the model says.

    Attributes:
        key: the field with its texts.
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
    max_tokens_per_doc: Annotated[Size | None, _doc("Read only the first so many tokens of each document.")] = None
    max_chunks_per_doc: Annotated[
        Size | None, _doc("Divide each document into so many chunks at most; its score is that of the best one.")
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
# The paths that take a body, what they do and the types of the body. The first type counts if its key of texts decides nothing.
POSTED: Mapping[str, tuple[str, tuple[type[Request], ...]]] = {
    "/v1/embeddings": ("Vectors of texts, as OpenAI's.", (OpenAIEmbeddings,)),
    "/embed": ("Vectors of texts, as TEI's, with errors in its form.", (TeiEmbeddings,)),
    "/v1/rerank": ("Passages by their relevance to a query, as Cohere's and Jina's.", (CohereRerank, TeiRerank)),
    "/v2/rerank": ("The same.", (CohereRerank, TeiRerank)),
    "/rerank": ("The same, as TEI's, with errors in its form.", (TeiRerank, CohereRerank)),
}
# The paths that only say something, and whether a key is asked for.
GOT: Mapping[str, tuple[str, bool]] = {
    "/v1/models": ("The model that is served, as OpenAI's.", True),
    "/health": ("Whether the server answers, and what waits.", False),
    "/metrics": ("Numbers for Prometheus.", True),
    "/openapi.json": ("This description.", False),
    "/docs": ("This page.", False),
}
# Why a request has no answer, by status, and what OpenAI and TEI call such an error.
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
    """Texts of a request, and what its errors call them."""

    key: str
    texts: Sequence[Any]  # strings, or a list of token ids in the place of each
    truncation_key: str
    is_cut: bool  # whether the beginning of a text that is longer than the model is read
    places: Sequence[str]  # of each text


def read_body(path: str, body: bytes, unread_keys: Sequence[str] = UNREAD_KEYS) -> Request:
    """Read the request in a body. A key whose value is null counts as missing. Raises ApiError, which names the key."""
    try:
        table = untrusted.json_of(body, "the request")
    except CheckpointError as error:
        raise ApiError(422, str(error)) from error
    kind: Any = max(POSTED[path][1], key=lambda body_type: body_type.key in table)
    rules = field_rules(kind)
    # Before pydantic reads the values: it makes an error of each unknown key, and keeps them all.
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
    """Return the texts of a field. Raises ApiError: they are too many, or TEI's truncation_direction asks for the other end of texts than the
    model loses.

    Args:
        request: the body.
        key: of the field.
        limits: what it may hold.
        truncates: if the request does not say.
        from_left: whether the beginning of a long text is what the model loses.
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
