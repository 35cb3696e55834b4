"""Requests to the service of a page, repeated until their replies are complete; and texts that bundled models read."""

from functools import cache
from typing import Any

import uwaga
from uwaga.viewer.messages import Reply
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Text
from uwaga.viewer.texts import TextRunner


@cache
def runner_of(model: str) -> TextRunner:
    """What reads texts by a bundled model, for all tests of this process."""
    return TextRunner(Text("", model=uwaga.models.open(model, dtype="float32")))


def replies_of(service: ViewService, **request: Any) -> list[Reply]:
    """All replies to a request, the last of which is complete."""
    replies = [service.answer(request)]
    while replies[-1].meta.get("complete", 1) < 1:
        replies.append(service.answer(request))
        assert len(replies) < 1000
    return replies


def complete(service: ViewService, **request: Any) -> Reply:
    """The complete reply to a request."""
    return replies_of(service, **request)[-1]
