"""A page that is one file: the front end, and the replies that it will ask for."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from uwaga._base.durable import atomic_replace
from uwaga.viewer.desk.reply import Reply
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.keeping import Keeper
from uwaga.viewer.page.shell import saved_shell
from uwaga.viewer.page.wanted import Exact, Question, exact_questions, groups

LARGEST = 19_000_000  # bytes of a page, but for exact tiles that were asked for


class Desk(Protocol):
    """Who answers."""

    def answer(self, question: Question) -> Reply:
        """Raises QuestionError."""
        ...


def saved_page(
    answer: Callable[[Question], Reply],
    *,
    exact: Sequence[Mapping[str, object]] = (),
    seconds: float = 8.0,
    largest: int = LARGEST,
    progress: Callable[[float], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> bytes:
    """What a desk knows, as HTML in UTF-8 that needs no server and no network.

    It holds tokens, statistics, an overview of every layer and the whole map of every head in the finest cells that fit,
    first as the tokens are, then with words merged and special tokens hidden; cells of more than one weight are rounded to
    three digits.

    Args:
        answer: a desk's; asked for everything that is in the page.
        exact: questions whose replies are in the page unrounded, however large.
        seconds: how long to work: what is needed is asked once whatever it takes, then there is time for the other ways to
            see it, and for what was sampled first. What is not exact by then stays a sample.
        largest: bytes that the page aims at.
        progress: told what part of the work is done, from 0 to 1.
        stop: asked often; once it is true, StoppedError is raised.

    Raises:
        QuestionError: of `exact`.
        StoppedError: see `stop`.
    """
    front = bundle()
    script = front.script("saved")
    about = answer({"ask": "about"})
    room = largest - len(script.encode()) - len(front.css.encode())
    keeper = Keeper(answer=answer, room=room, seconds=seconds)
    if progress is not None:
        keeper.progress = progress
    if stop is not None:
        keeper.stop = stop
    keeper.put({"ask": "about"}, Reply(meta={**about.meta, "live": False}))
    for group in groups(about.meta):
        keeper.offer(group)
    keeper.take([dict(question) for question in exact])
    keeper.complete()
    data = json.dumps({"replies": keeper.replies}, separators=(",", ":")).replace("<", "\\u003c")
    return saved_shell(str(about.meta["title"]), script=script, css=front.css, data=data).encode()


def save_page(
    desk: Desk,
    path: str | os.PathLike[str],
    *,
    exact: Sequence[Exact] = (),
    seconds: float = 8.0,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a page; under its name it is whole or not there at all. Raises ValueError, of `exact`, and OSError."""
    about = desk.answer({"ask": "about"}).meta
    asked = [question for each in exact for question in exact_questions(about, each)]
    page = saved_page(desk.answer, exact=asked, seconds=seconds, progress=progress)
    with atomic_replace(Path(path)) as file:
        file.write(page)
