"""Settings of models that write text: which ids mean something. As config.json has them, and as ours have them."""

from uwaga.models.settings import COUNT, SIZE, Kind

OPTIONAL_SIZE = Kind(f"None or {SIZE.words}", lambda x: x is None or SIZE.accepts(x))
IDS = Kind("a tuple of ids", lambda x: isinstance(x, tuple) and all(map(COUNT.accepts, x)))
# eos_token_id in a config.json.
ENDS = Kind(
    "an id, a list of ids or None",
    lambda x: x is None or COUNT.accepts(x) or (isinstance(x, list) and all(map(COUNT.accepts, x))),
)


def read_ends(found: int | list[int] | None) -> tuple[int, ...]:
    """
    >>> read_ends(None), read_ends(5), read_ends([5, 6])
    ((), (5,), (5, 6))
    """
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (found,)


def write_ends(ends: tuple[int, ...]) -> int | list[int] | None:
    """
    >>> write_ends(()), write_ends((5,)), write_ends((5, 6))
    (None, 5, [5, 6])
    """
    if len(ends) > 1:
        return list(ends)
    return ends[0] if ends else None
