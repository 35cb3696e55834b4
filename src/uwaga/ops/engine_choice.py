"""Which engine serves a call of attention, of its maps or of the linear map: the first in an order of preference that does not refuse,
or the one that the caller names, which runs or raises and never falls back. The orders are in the `choose` of each."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from uwaga._base.arguments import choice

NAMED = "named by the caller"

# For the name of an engine why it cannot serve a call, as the end of a sentence, or None.
Refusal = Callable[[str], str | None]


class Choice(NamedTuple):
    """The engine that serves a call, why, and why others cannot."""

    engine: str
    reason: str
    refused: dict[str, str]


def named(impl: str, names: Collection[str], refusal: Refusal, *, function: str, what: str = "call") -> str:
    """Return `impl`. Raises ValueError if there is no such engine, or it refuses; `function`: the public one, for the message."""
    choice(impl, f"{function}: impl", names, " or None")
    if (why := refusal(impl)) is not None:
        raise ValueError(f"{function}: engine {impl!r} cannot serve this {what}: {why}")
    return impl


def refusals(names: Iterable[str], refusal: Refusal) -> dict[str, str]:
    """Return the reason against each engine that cannot serve."""
    return {name: why for name in names if (why := refusal(name)) is not None}
