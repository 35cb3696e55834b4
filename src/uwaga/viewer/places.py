"""Places on a page, as fragments of its address: a head, and a word that is picked in it."""

import re
from urllib.parse import urlencode

from uwaga.viewer.messages import Service

_HEAD = re.compile(r"(?:(encoder|decoder|cross)/)?(\d{1,4})\.(\d{1,4})")


def parse_head(head: str) -> tuple[str | None, int, int]:
    """Return kind or None, layer and head of "3.1" or "cross/3.1". Raises ValueError."""
    match = _HEAD.fullmatch(head)
    if match is None:
        rule = "layer.head, such as 3.1, or kind/layer.head, such as cross/3.1"
        raise ValueError(f"head must be {rule}, not {head!r}")
    return match[1], int(match[2]), int(match[3])


def place_of(service: Service, head: str, pick: str | None = None) -> str:
    """Return the fragment that opens a head with a word picked. Raises ValueError: no such head or word."""
    about = service.answer({"request": "about"}).meta
    side, start = about["sides"][0], about["start"]
    kind, layer, number = parse_head(head)
    kind = kind or start["kind"]
    heads = next((one["heads"] for one in side["maps"] if (one["kind"], one["layer"]) == (kind, layer)), 0)
    if number >= heads:
        raise ValueError(f"head must be one that is shown: there is no head {number} of {kind} layer {layer}")
    where: dict[str, str | int] = {"kind": kind, "layer": layer, "head": number}
    if "picture" in about:
        where["mean"] = "no"  # this head, in place of the mean of all
    if pick is not None:
        where["query"] = _word(service, side["kinds"][kind]["queries"], start["merge"], pick)
    return urlencode(where)


def _word(service: Service, stack: str, merge: str, pick: str) -> int:
    """Return the first item of the text that is the word, in its letters or else in others."""
    shown = {"request": "items", "side": "0", "stack": stack, "merge": merge, "specials": "show"}
    words = [label.strip() for label in service.answer({**shown, "first": 0, "count": 200_000}).meta["labels"]]
    for same in (str, str.casefold):
        picked, forms = same(pick.strip()), [same(word) for word in words]
        if picked in forms:
            return forms.index(picked)
    raise ValueError(f"pick must be a word of the text, not {pick!r}: {', '.join(words[:12])}")
