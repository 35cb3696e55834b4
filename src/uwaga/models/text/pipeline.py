"""Tokenise the next group of texts on a thread while the model reads this one.

The texts themselves are taken in the caller's thread: an iterator of his need not be safe in another.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from uwaga.models.text.prepare import Prepared, Preparer

# Groups that wait tokenised. One suffices: a group is read by the model many times more slowly than it is tokenised.
_AHEAD = 1


def prepared(groups: Iterable[Sequence[str]], preparer: Preparer) -> Iterator[Prepared]:
    """The groups in their order. Raises what the iterable raises, and DocumentError."""
    waiting: deque[Future[Prepared]] = deque()
    first = 0
    with ThreadPoolExecutor(1, thread_name_prefix="uwaga-tokens") as thread:
        try:
            for group in groups:
                waiting.append(thread.submit(preparer.prepare, group, first))
                first += len(group)
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
