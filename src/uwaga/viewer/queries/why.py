"""Why a head looks there: the score of one link as the sum of what pairs of parts of the model contribute to it.

The figures are those of `uwaga.inspect.score_attribution`, for the page: the strongest pairs, what is left for the others, and for each
part that is a head the token from which it brought most of that.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch

from uwaga.viewer.queries.heads import HeadResolver, HeadView
from uwaga.viewer.request_table import Shown, in_range, invalid, one_of
from uwaga.viewer.shown import AXES, MapName, Side

if TYPE_CHECKING:
    from uwaga.inspect.attribution.attribute import ScoreAttribution
    from uwaga.inspect.attribution.streams import Part
    from uwaga.inspect.recordings.recording import Recording

_TOP = 10  # pairs of parts that a reply lists
# What the page has a sentence for; any other reason is a sentence itself.
NO_MODEL, CHANGED, HIDDEN, FAMILY = "model", "changed", "hidden", "family"


class Link(NamedTuple):
    """A query and a key of a head, as tokens, and another key that the score is compared with."""

    side: Side
    name: MapName
    head: int
    query: int
    key: int
    than: int | None
    weights: tuple[float, float | None]  # on the key, and on the other
    is_hidden: bool  # by the mask, so that there is no score


def link(
    resolver: HeadResolver, *, head: int, query: int, key: int, than: int | None = None, **shown: Unpack[Shown]
) -> Link:
    """Return the link that a request names by its items.

    If an item has several tokens, the link is the one with the largest weight.

    Raises:
        RequestError: a side, layer or head that does not exist, a difference, items out of range, or `than` that is the key.
    """
    selection, _ = resolver.select(head, **shown)
    one_of("side", selection.side, [str(number) for number in range(len(resolver.view.sides))])
    queries, keys = resolver.axes(selection)
    query_tokens = _tokens(queries.spans[in_range("query", query, 0, len(queries))])
    key_tokens = _tokens(keys.spans[in_range("key", key, 0, len(keys))])
    tokens = resolver.head_view(selection._replace(merge="tokens", specials="show"), head)
    query, at, weight = _strongest(tokens, query_tokens, key_tokens)
    weight_than = None
    if than is not None:
        if in_range("than", than, 0, len(keys)) == key:
            raise invalid("than", "another key", than)
        _, than, weight_than = _strongest(tokens, [query], _tokens(keys.spans[than]))
    seen = tokens.attention
    is_hidden = seen is not None and any(
        float(torch.as_tensor(seen.scores[query, place])) == -float("inf") for place in (at, than) if place is not None
    )
    side = resolver.side(selection.side)
    return Link(side, selection.name, head, query, at, than, (weight, weight_than), is_hidden)


def explain(of: Link, read: Callable[[], "Recording"]) -> dict[str, Any]:
    """Return the meta of a reply. `front/types.js` describes it.

    Args:
        of: the link.
        read: gives the recording of the side, with values.

    Raises:
        ValueError: as `score_attribution`, and from `read`.
    """
    from uwaga.inspect.attribution.attribute import UnknownFamilyError, score_attribution

    if of.side.scores is None:
        return {"error": NO_MODEL}
    if of.is_hidden:
        return {"error": HIDDEN}
    kind, layer = of.name
    recording, row = read(), of.side.scores.row
    try:
        why = score_attribution(
            of.side.scores.model, recording, layer, of.head, of.query, of.key, than=of.than, kind=kind, row=row
        )
    except UnknownFamilyError:
        return {"error": FAMILY}
    shares = why.top(len(why.query_parts) * len(why.key_parts) + 1)
    largest, total = shares[:_TOP], float(why.total()[0])
    queries, keys = (of.side.token_text(stack).labels for stack in AXES[kind])
    return {
        "tokens": [of.query, of.key, of.than],
        "labels": [queries[of.query], keys[of.key], None if of.than is None else keys[of.than]],
        "weights": list(of.weights),
        "score": float(why.scores[0]),
        "total": total,
        "count": len(shares),
        "shares": [
            {
                "query": share.query._asdict(),
                "key": share.key._asdict(),
                "share": share.share,
                "sources": [
                    _source(of, why, recording, "query", share.query, share.key),
                    _source(of, why, recording, "key", share.key, share.query),
                ],
            }
            for share in largest
        ],
        "rest": total - sum(share.share for share in largest),
    }


def _source(
    of: Link, why: "ScoreAttribution", recording: "Recording", side: str, part: "Part", other: "Part"
) -> dict[str, Any] | None:
    """Return the token from which a head brought most of a share, and to which; None if no head.

    Of a difference of two keys, a head has brought something to both: it is the one at which the head looks more at that token.
    """
    if part.name != "head":
        return None
    shares = why.sources(part, side, other)
    token = int(shares.abs().argmax())
    places = [of.query] if side == "query" else [place for place in (of.key, of.than) if place is not None]
    to = places[0] if len(places) == 1 else max(places, key=lambda at: _weight(recording, why.row, part, at, token))
    label = of.side.token_text(AXES[part.attention_head()[0].kind][1]).labels[token]
    return {"to": to, "token": token, "label": label, "share": float(shares[token])}


def _weight(recording: "Recording", row: int, part: "Part", query: int, key: int) -> float:
    """Return the weight of the head that a part is."""
    where, head = part.attention_head()
    m = recording.maps[where]
    return float(torch.as_tensor(m.select(*([row] if len(m.shape) == 4 else []), head)[query, key]))


def _tokens(span: Any) -> list[int]:
    return list(range(int(span[0]), int(span[1])))


def _strongest(tokens: HeadView, queries: list[int], keys: list[int]) -> tuple[int, int, float]:
    """Return the query, the key and the weight of the largest weight."""
    weights = tokens.read(queries, keys)
    row, column = divmod(int(weights.argmax()), len(keys))
    return queries[row], keys[column], float(weights[row, column])
