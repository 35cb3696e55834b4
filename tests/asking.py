"""Requests to the service of a page, repeated until their replies are complete."""

from typing import Any

from uwaga.viewer.messages import Reply
from uwaga.viewer.service import ViewService


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
