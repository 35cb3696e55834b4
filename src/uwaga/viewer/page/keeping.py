"""Replies as a saved page keeps them: by their question, small, and gone on with until they are complete."""

import base64
import gzip
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uwaga.viewer.desk.reply import Reply
from uwaga.viewer.page.wanted import Group, Question, canonical

# Bits of the fraction of a coarse cell's float32: 3 digits, and half the bytes once compressed. Exact weights keep all 23.
_COARSE_BITS = 10
_EFFORT = 3  # of gzip; its usual 6 saves 2 % more of such numbers, in four times the time
_SHARE = 0.6  # of the room that is left, what one group may take: the next ones are wanted too


class StoppedError(Exception):
    """Keeping was told to stop."""


@dataclass(kw_only=True)
class Keeper:
    """Asks, and keeps.

    Args:
        answer: a desk's.
        room: bytes of the replies as they stand in the page; what is needed is kept beyond that too.
        seconds: how long to go on with replies that are not complete, and with what is not needed. What is needed is asked
            once whatever it takes.
        progress: told what part of the work is done, from 0 to 1.
        stop: asked between two questions.
    """

    answer: Callable[[Question], Reply]
    room: int
    seconds: float
    progress: Callable[[float], None] = lambda done: None
    stop: Callable[[], bool] = lambda: False
    replies: dict[str, str] = field(default_factory=dict)  # by canonical question, base64 of bytes, plain or gzip
    _began: float = field(default_factory=time.monotonic)
    _open: list[tuple[float, Question]] = field(default_factory=list)  # how complete, what

    def put(self, question: Question, reply: Reply) -> None:
        """Keep a reply that is made elsewhere."""
        self._put(question, reply)

    def take(self, questions: Sequence[Question]) -> None:
        """Ask and keep these, whatever they take. Raises QuestionError, StoppedError."""
        for question in questions:
            if canonical(question) not in self.replies or question in self._waiting:
                self._ask(question)

    def offer(self, group: Group) -> None:
        """Keep the largest choice of a group that fits. Raises QuestionError, StoppedError."""
        for number, questions in enumerate(group.choices):
            last = group.needed and number == len(group.choices) - 1
            if not questions:
                return
            if last or self._fits(questions, timely=not group.needed):
                self.take(questions)
                return

    def complete(self) -> None:
        """Go on with what is not complete, in turn, for as long as there is time. Raises StoppedError."""
        total = max(len(self._open), 1)
        while self._open and (spent := time.monotonic() - self._began) < self.seconds:
            waiting, self._open = self._open, []
            for _, question in waiting:
                self._ask(question)
            self.progress(max(spent / self.seconds, 1 - len(self._open) / total))
        self.progress(1.0)

    @property
    def _waiting(self) -> list[Question]:
        return [question for _, question in self._open]

    def _fits(self, questions: Sequence[Question], *, timely: bool) -> bool:
        """In room, and in time where that matters, as one of them shows."""
        taken, began = sum(map(len, self.replies.values())), time.monotonic()
        sample = questions[len(questions) // 2]
        kept = self.replies.get(canonical(sample))
        before = list(self._open)
        self._ask(sample)
        asked = time.monotonic()
        fits = len(self.replies[canonical(sample)]) * len(questions) <= _SHARE * (self.room - taken)
        fits &= not timely or (asked - began) * len(questions) <= self.seconds - (asked - self._began)
        if not fits and kept is None:
            del self.replies[canonical(sample)]
            self._open = before
        return fits

    def _ask(self, question: Question) -> None:
        if self.stop():
            raise StoppedError
        reply = self.answer(dict(question))
        done = reply.meta.get("complete", 1)
        self._open = [(was, other) for was, other in self._open if other != question]
        if done < 1:
            self._open.append((done, question))
        self._put(question, reply)

    def _put(self, question: Question, reply: Reply) -> None:
        data = kept(question, reply).to_bytes()
        packed = gzip.compress(data, _EFFORT, mtime=0)
        self.replies[canonical(question)] = base64.b64encode(min(data, packed, key=len)).decode()


def kept(question: Question, reply: Reply) -> Reply:
    """A reply for a page that nobody goes on with: `complete` is 1, and `reached` says how far it came."""
    meta: dict[str, Any] = dict(reply.meta)
    if "complete" in meta:
        meta |= {"complete": 1, "reached": meta["complete"]}
    # Pictures; all else is numbers to read.
    coarse = question["ask"] == "overview" or (question["ask"] == "tile" and question["level"] != 0)
    arrays = tuple(_rounded(array) if coarse and array.dtype == np.float32 else array for array in reply.arrays)
    return Reply(meta=meta, arrays=arrays)


def _rounded(array: NDArray[Any]) -> NDArray[Any]:
    """To the nearest number with so many bits; nan and infinity as they are."""
    drop = 23 - _COARSE_BITS
    bits = np.ascontiguousarray(array).view(np.uint32)
    nearest = ((bits + np.uint32(1 << (drop - 1))) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isfinite(array) & np.isfinite(nearest), nearest, array).astype(np.float32)
