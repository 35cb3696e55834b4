"""The head and the word that `uwaga view --head --pick` opens, as the page's address names them."""

import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from uwaga.inspect.run_text import RecordError

if TYPE_CHECKING:
    from uwaga.viewer.messages import Service

_HEAD = re.compile(r"(?:(encoder|decoder|cross)/)?(\d{1,4})\.(\d{1,4})")
_SAID = 12  # words of a text that an error lists


def parse(head: str | None, pick: str | None) -> tuple[str | None, int, int] | None:
    """(kind or None, layer, head) of "3.1" or "cross/3.1"; None without a head. Raises RecordError."""
    if head is None:
        if pick is not None:
            raise RecordError("--pick needs --head, which says in which head the word is picked")
        return None
    match = _HEAD.fullmatch(head)
    if match is None:
        raise RecordError(f"--head takes layer.head, such as 3.1, or kind/layer.head, such as cross/3.1, not {head!r}")
    return match[1], int(match[2]), int(match[3])


def fragment(service: "Service", place: tuple[str | None, int, int], pick: str | None) -> str:
    """The fragment of the page's address. Raises RecordError: there is no such head, or no such word in its text."""
    about = service.answer({"request": "about"}).meta
    side, start = about["sides"][0], about["start"]
    kind, layer, head = place[0] or start["kind"], place[1], place[2]
    heads = next((one["heads"] for one in side["maps"] if (one["kind"], one["layer"]) == (kind, layer)), 0)
    if head >= heads:
        raise RecordError(f"--head: there is no head {head} of {kind} layer {layer}")
    where: dict[str, str | int] = {"kind": kind, "layer": layer, "head": head}
    if pick is not None:
        where["query"] = _word(service, side["kinds"][kind]["queries"], start["merge"], pick)
    return urlencode(where)


def _word(service: "Service", stack: str, merge: str, pick: str) -> int:
    """The first item of the text that is the word, in its letters or else in others."""
    shown = {"side": "0", "stack": stack, "merge": merge, "specials": "show"}
    labels: list[str] = []
    while True:
        part = service.answer({"request": "items", **shown, "first": len(labels), "count": 200_000}).meta
        labels += part["labels"]
        if len(labels) >= part["total"] or not part["labels"]:
            break
    words = [label.strip() for label in labels]
    for same in (lambda word: word == pick.strip(), lambda word: word.casefold() == pick.strip().casefold()):
        found = next((at for at, word in enumerate(words) if same(word)), None)
        if found is not None:
            return found
    said = ", ".join(words[:_SAID]) + (", ..." if len(words) > _SAID else "")
    raise RecordError(f"--pick: {pick!r} is no word of the text: {said}")
