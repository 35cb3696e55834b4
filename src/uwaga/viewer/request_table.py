"""The table of requests: for each the function that answers it, whose annotations are the rules of its arguments.

A request is untrusted: `parse` checks its arguments before anything is computed. Which sides, heads and tokens there are depends on the
text; the functions check it by `in_range` and `one_of`. What is inside "edits" is checked by `uwaga.inspect.edits.Edits.from_dict`, and the
numbers of a lesson by `uwaga.lessons.example`.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar, get_args

from uwaga._base.languages import LANGUAGES
from uwaga._base.options import Integer, OptionError, Text, Words, options, read
from uwaga._base.terminal import printable, short
from uwaga._base.untrusted import check_json_depth
from uwaga.viewer.messages import Reply, Request, RequestError

# Who waits for whom: requests wait for others of their lane alone. A "short" one takes a fraction of a second, and is asked again for the
# rest; a "long" one is computed to its end.
Lane = Literal["short", "long", "run", "why"]
MapKind = Literal["encoder", "decoder", "cross"]
Merge = Literal["tokens", "words"]
Specials = Literal["show", "hide"]
Pooling = Literal["sum", "max"]
Language = Annotated[Literal["en", "pl", "pt", "ja", "zh"], Words(f"one of {', '.join(LANGUAGES)}")]

Function = TypeVar("Function", bound=Callable[..., Any])


class Layer(TypedDict):
    """A layer of a side."""

    side: Text
    kind: MapKind
    layer: Integer


class Shown(Layer):
    """A layer, and how its axes are shown."""

    merge: Merge
    specials: Specials


class Handler(NamedTuple):
    """A row of the table.

    function: takes the result that a request is about and the arguments, and returns a Reply or a computation in steps.
    arguments: made by `options`.
    saved: whether a saved page may hold the reply.
    in_steps: whether the function returns such a computation.
    reads_maps: whether the function needs the lock of the result: a short one that does not is answered while others are computed.
    """

    name: str
    function: Callable[..., Any]
    arguments: Any
    lane: Lane
    saved: bool
    in_steps: bool
    reads_maps: bool


TABLE: dict[str, Handler] = {}


def request(*, lane: Lane = "short", saved: bool = False, reads_maps: bool = True) -> Callable[[Function], Function]:
    """Enter a function into the table; its parameters after the result are the arguments."""

    def enter(function: Function) -> Function:
        # run: the number of a text that was run; None: what the view opened with.
        rules: dict[str, Any] = {"run": Integer | None}
        defaults: dict[str, Any] = {"run": None}
        signature = inspect.signature(function)
        for name, parameter in list(signature.parameters.items())[1:]:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                rules |= get_args(parameter.annotation)[0].__annotations__
            else:
                rules[name] = parameter.annotation
                if parameter.default is not inspect.Parameter.empty:
                    defaults[name] = parameter.default
        made: Any = options(type(function.__name__, (), {"__annotations__": rules, **defaults}))
        in_steps = signature.return_annotation is not Reply
        TABLE[function.__name__] = Handler(function.__name__, function, made, lane, saved, in_steps, reads_maps)
        return function

    return enter


def parse(asked: Request) -> tuple[Handler, dict[str, Any]]:
    """Return the row of the table, and all arguments.

    Raises:
        RequestError: an unknown request; an argument that is missing, unknown, of another kind or nested too deeply.
    """
    name = asked.get("request")
    if "request" not in asked:
        raise RequestError('request: the key "request" is missing')
    if not isinstance(name, str):
        raise RequestError(f"request: request must be a string, not {short(name)}")
    if name not in TABLE:
        title = name if len(name) <= 20 else "request"
        raise RequestError(f"{title}: request must be one of {', '.join(TABLE)}, not {short(name)}")
    fields = {key: value for key, value in asked.items() if key != "request"}
    for key, value in fields.items():
        try:
            check_json_depth(value)
        except RecursionError as error:
            raise RequestError(f"{name}: {printable(key)} is {error}") from error
    try:
        arguments = read(TABLE[name].arguments, fields)
    except OptionError as error:
        raise RequestError(f"{name}: {error}") from error
    return TABLE[name], dict(vars(arguments))


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return the value of an argument. Raises RequestError: it is none of the choices."""
    if value not in choices:
        raise invalid(name, f"one of {', '.join(choices)}", value)
    return value


def in_range(name: str, value: int, low: int, high: int) -> int:
    """Return the value of an argument. Raises RequestError: not low <= value < high."""
    if not low <= value < high:
        raise invalid(
            name, f"from {low} to {high - 1}" if low < high else f"in range({low}, {high}), which is empty", value
        )
    return value


def invalid(name: str, rule: str, value: object) -> RequestError:
    """Return the error for an argument that breaks a rule."""
    return RequestError(f"{name} must be {rule}, not {short(value)}")
