"""A corpus in shards, which processes encode one by one and any process may encode again: which documents a shard has depends on them alone."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from uwaga.data.documents import Document
from uwaga.encode.vector_files import Shard

# A shard is seconds of work, so that few are lost with a process, and there are enough for many of them. It ends early, by what its last
# document is, so that after documents that were added, mended or removed the shards are soon the same again.
SHARD_DOCUMENTS, SHARD_CHARACTERS, _LEAST_CHARACTERS = 512, 1 << 16, 1 << 15
_ENDS = 4  # of so many documents one may be a shard's last


class Group(NamedTuple):
    """Documents that become one shard. Which they are depends on the documents alone, so that a resumed run has the same."""

    documents: list[Document]
    shard: Shard

    @property
    def places(self) -> str:
        return f"{self.documents[0].place} to {self.documents[-1].place}"


def groups(
    corpus: Iterable[Document], *, max_documents: int = SHARD_DOCUMENTS, max_characters: int = SHARD_CHARACTERS
) -> Iterator[Group]:
    """The documents in groups, each with its digest. Raises DataError."""
    group: list[Document] = []
    size = 0
    for document in corpus:
        length = document.length()
        if group and size + length > max_characters:
            yield Group(group, Shard(digest(group), len(group)))
            group, size = [], 0
        group.append(document)
        size += length
        is_end = size >= _LEAST_CHARACTERS and int(digest([document])[:2], 16) % _ENDS == 0
        if is_end or len(group) == max_documents:
            yield Group(group, Shard(digest(group), len(group)))
            group, size = [], 0
    if group:
        yield Group(group, Shard(digest(group), len(group)))


def digest(documents: Sequence[Document]) -> str:
    """SHA-256 over ids and texts, each preceded by its length."""
    whole = hashlib.sha256()
    for document in documents:
        for part in (document.id or "", document.text):
            encoded = part.encode()
            whole.update(len(encoded).to_bytes(8, "little") + encoded)
    return whole.hexdigest()


def batch_of(documents: Sequence[Document]) -> dict[str, Any]:
    """The columns of a group for a BatchEncoder. What could not be read comes as an empty text, with its own reason."""
    import numpy as np

    columns = {
        "place": [each.place for each in documents],
        "id": [each.id for each in documents],
        "text": [each.text for each in documents],
        "reason": [each.error for each in documents],
    }
    return {"document": np.arange(len(documents)), **columns}
