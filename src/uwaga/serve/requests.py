"""The bodies of requests, checked: every key known, every value of its type and within the limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from uwaga._base import untrusted
from uwaga._base.terminal import printable, short

# Keys that change no number and that nothing reads: LiteLLM's proxy adds them to what its clients send, Dify among them.
UNREAD_KEYS = ("metadata", "proxy_server_request")
T = TypeVar("T")
D = TypeVar("D")


class ApiError(Exception):
    """A request that is refused, or failed.

    Attributes:
        status: of HTTP.
        message: for people.
        param: the key of the request that is wrong.
        code: a word for programs.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may hold, and all of them together."""

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


class Truncation(NamedTuple):
    """Whether the beginning of a text that is longer than the model is read, and the key of the request that says so."""

    key: str
    is_on: bool


class Texts(NamedTuple):
    """Texts of a request, and what its errors call them."""

    key: str
    texts: Sequence[str]
    truncation: Truncation
    places: Sequence[str]  # of each text


Form = Literal["openai", "cohere", "tei"]  # of an interface; Cohere's is Jina's too


class EmbeddingsRequest(NamedTuple):
    """A body of /v1/embeddings or /embed: texts, or token ids in their place."""

    input: Texts
    ids: Sequence[Sequence[int]] | None
    is_base64: bool
    dimensions: int | None
    prompt: str | None  # None: the model's default
    normalize: bool | None  # None: as the model's modules say


class RerankRequest(NamedTuple):
    """A body of /v1/rerank, /v2/rerank or /rerank."""

    query: Texts
    passages: Texts
    top: int | None
    with_texts: bool
    raw_scores: bool
    form: Form  # of the reply: Cohere's and Jina's, or that of TEI
    max_tokens: int | None = None  # of a passage: what is beyond them is not read; None: all
    max_chunks: int | None = (
        None  # that a passage is divided into, each as long as the model takes; None: it is not divided
    )


def embeddings_request(
    body: bytes,
    *,
    model: str,
    form: Form,
    width: int,
    prompts: Mapping[str, str],
    truncate: bool,
    truncates_left: bool,
    limits: Limits,
) -> EmbeddingsRequest:
    """Read a body in the form of OpenAI or TEI. Raises ApiError.

    truncate: if the request does not say. truncates_left: whether the model's directory says truncation_side "left".
    """
    fields, is_tei = _Fields(body), form == "tei"
    _check_model(fields, model)
    key = "inputs" if is_tei else "input"
    given = fields.take(key, _any)
    texts, ids = _input(key, given, limits)
    dimensions = fields.take("dimensions", _integer(1, width), None)
    name = fields.take("prompt_name", _string, None)
    if name is not None and name not in prompts:
        known = ", ".join(map(printable, prompts))
        raise ApiError(422, f"prompt_name is {short(name)}, and the model's prompts are: {known}", param="prompt_name")
    truncation = _truncation(fields, "truncate", truncate)
    encoding, normalize = "float", None
    if is_tei:
        normalize = fields.take("normalize", _boolean, True)
        _check_direction(fields, truncation, truncates_left)
    else:
        encoding = fields.take("encoding_format", _one_of("float", "base64"), "float")
        fields.take("user", _string, None)
    fields.finish(limits, input_type="prompt_name names a prompt of the model")
    places = _places(key, given) if isinstance(given, list) and not _is_id(given[0]) else [key]
    prompt = None if name is None else prompts[name]
    return EmbeddingsRequest(
        Texts(key, texts or (), truncation, places), ids, encoding == "base64", dimensions, prompt, normalize
    )


def rerank_request(
    body: bytes, *, model: str, form: Form, truncate: bool, truncates_left: bool, limits: Limits
) -> RerankRequest:
    """form: of the path, for a body that has neither `documents` nor `texts`. truncate, truncates_left: as `embeddings_request`. Raises ApiError."""
    fields = _Fields(body)
    _check_model(fields, model)
    query = fields.take("query", _string)
    if "texts" in fields or (form == "tei" and "documents" not in fields):
        passages = _passages(fields, "texts", limits)
        with_texts = fields.take("return_text", _boolean, False)
        raw = fields.take("raw_scores", _boolean, False)
        truncation = _truncation(fields, "truncate", truncate)
        _check_direction(fields, truncation, truncates_left)
        fields.finish(limits)
        return RerankRequest(
            Texts("query", [query], truncation, ["query"]),
            Texts("texts", passages, truncation, _places("texts", passages)),
            None,
            with_texts,
            raw,
            "tei",
        )
    passages = _passages(fields, "documents", limits)
    top = fields.take("top_n", _integer(1, 1 << 31), None)
    with_texts = fields.take("return_documents", _boolean, False)
    truncation = _truncation(fields, "truncation", truncate)
    tokens = fields.take("max_tokens_per_doc", _integer(1, 1 << 31), None)
    chunks = fields.take("max_chunks_per_doc", _integer(1, 1 << 31), None)
    fields.finish(limits, rank_fields="write the fields of a document into one text, and send that")
    return RerankRequest(
        Texts("query", [query], truncation, ["query"]),
        Texts("documents", passages, truncation, _places("documents", passages)),
        top,
        with_texts,
        False,
        "cohere",
        tokens,
        chunks,
    )


_MISSING: Any = object()


class _Fields:
    """The keys and values of a JSON object, taken one after the other."""

    def __init__(self, body: bytes) -> None:
        try:
            parsed = untrusted.parse_json(body)
        except RecursionError as error:
            raise ApiError(422, f"the JSON of the request is {error}") from error
        except ValueError as error:  # also for bytes that are not UTF-8, and for an integer of thousands of digits
            raise ApiError(422, f"the request is not valid JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise ApiError(422, "a request must be a JSON object")
        self._left: dict[str, object] = parsed

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, kind: Callable[[str, object], T], default: D = _MISSING) -> T | D:
        """The value of a key, checked; its default where it is missing or null. Raises ApiError."""
        value = self._left.pop(key, None)
        if value is not None:
            return kind(key, value)
        if default is _MISSING:
            raise ApiError(422, f"the request has no {key}", param=key)
        return default

    def finish(self, limits: Limits, **advice: str) -> None:
        """Raises ApiError: there are keys that nothing reads. advice: what to do in place of sending a key."""
        left = [key for key in self._left if key not in limits.unread_keys]
        if left:
            names = ", ".join(sorted(map(printable, left[:10])))
            ways = [advice[key] for key in left[:10] if key in advice]
            way_out = "; ".join([*ways, "the server's option --ignore-key lets a key through unread"])
            message = f"the request has keys that are not known here: {names}; {way_out}"
            raise ApiError(422, message, param=printable(left[0]))


def _wrong(key: str, what: str, value: object) -> ApiError:
    return ApiError(422, f"{key} must be {what}, not {short(value)}", param=key)


def _any(key: str, value: object) -> object:
    return value


def _string(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(key, "a string", value)
    return value


def _boolean(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return value


def _integer(low: int, high: int) -> Callable[[str, object], int]:
    def check(key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _wrong(key, f"a whole number from {low} to {high}", value)
        return value

    return check


def _one_of(*allowed: str) -> Callable[[str, object], str]:
    def check(key: str, value: object) -> str:
        if value not in allowed:
            raise _wrong(key, " or ".join(map(repr, allowed)), value)
        return str(value)

    return check


def _check_model(fields: _Fields, model: str) -> None:
    name = fields.take("model", _string, model)
    if name != model:
        message = f"there is no model {short(name)} here; this server has {model!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _places(key: str, given: Sequence[object]) -> list[str]:
    return [f"{key}[{number}]" for number in range(len(given))]


def _truncation(fields: _Fields, key: str, default: bool) -> Truncation:
    return Truncation(key, fields.take(key, _boolean, default))


def _check_direction(fields: _Fields, truncation: Truncation, truncates_left: bool) -> None:
    """Raises ApiError: TEI's truncation_direction asks for the other end of texts than the model loses."""
    key = "truncation_direction"
    direction = fields.take(key, _one_of("Left", "left", "Right", "right"), None)
    side = "Left" if truncates_left else "Right"
    if truncation.is_on and direction is not None and direction.title() != side:
        message = f"{key} must be '{side}', the side on which this model's directory truncates, not '{direction}'; leave it out, or cut the text yourself"
        raise ApiError(422, message, param=key)


def _input(key: str, given: object, limits: Limits) -> tuple[list[str] | None, list[list[int]] | None]:
    """The texts, or the token ids, of the four forms that the interfaces of OpenAI and TEI have."""
    if isinstance(given, str):
        return [given], None
    what = "a string, a list of strings, a list of token ids or a list of such lists"
    if not isinstance(given, list) or not given:
        raise _wrong(key, f"{what}, not empty", given)
    if all(isinstance(each, str) for each in given):
        _check_count(key, len(given), limits)
        return given, None
    if all(map(_is_id, given)):
        return None, [_ids(key, given, limits)]
    if all(isinstance(each, list) and each and all(map(_is_id, each)) for each in given):
        _check_count(key, len(given), limits)
        return None, [_ids(key, each, limits) for each in given]
    raise _wrong(key, what, given)


def _ids(key: str, given: list[int], limits: Limits) -> list[int]:
    if len(given) > limits.tokens:
        message = f"{key} has {len(given):,} token ids, more than the limit of {limits.tokens:,}"
        raise ApiError(413, message, param=key)
    return given


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_count(key: str, count: int, limits: Limits) -> None:
    if count > limits.items:
        raise ApiError(413, f"{key} has {count:,} entries, more than the limit of {limits.items:,}", param=key)


def _passages(fields: _Fields, key: str, limits: Limits) -> list[str]:
    """Strings, or as Cohere's and Jina's interfaces also have them, objects with a text."""
    given = fields.take(key, _any)
    if not isinstance(given, list) or not given:
        raise _wrong(key, "a list of strings, not empty", given)
    _check_count(key, len(given), limits)
    texts = []
    for number, each in enumerate(given):
        text = each["text"] if isinstance(each, dict) and each.keys() == {"text"} else each
        if not isinstance(text, str):
            what = "a string or an object with a text"
            raise ApiError(422, f"{key}[{number}] must be {what}, not {short(each)}", param=key)
        texts.append(text)
    return texts
