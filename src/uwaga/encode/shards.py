"""A file of documents to a parquet file of vectors, shard by shard, by this process, by several, or by a Ray cluster.

The documents of a shard depend only on the documents themselves, so that any process may encode a shard, and encode it again.
"""

import hashlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uwaga.data.documents import Document, DocumentFile, InvalidDocumentError
from uwaga.encode.processes import TIMEOUT
from uwaga.encode.vector_files import Shard, VectorFile, VectorsError, check_output, digest_of_shards

if TYPE_CHECKING:
    from uwaga.encode.batches import BatchEncoder
    from uwaga.ops.engine_choice import Choice

# A shard is seconds of work: a process that dies loses few seconds, and there are shards for many processes. The digest of its last document
# ends a shard early, so that soon after documents that were added, changed or removed, the shards are the same as before.
SHARD_DOCUMENTS, SHARD_CHARACTERS, _LEAST_CHARACTERS = 512, 1 << 16, 1 << 15
_ENDS = 4  # one of so many documents may be the last one of a shard


class Group(NamedTuple):
    """The documents of one shard."""

    documents: list[Document]
    shard: Shard

    @property
    def places(self) -> str:
        return f"{self.documents[0].place} to {self.documents[-1].place}"


def groups(
    corpus: Iterable[Document], *, max_documents: int = SHARD_DOCUMENTS, max_characters: int = SHARD_CHARACTERS
) -> Iterator[Group]:
    """Yield the documents in groups, each with its digest. Raises DataError."""
    from uwaga.encode import preprocessing

    def is_last(document: Document, size: int) -> bool:
        return size >= _LEAST_CHARACTERS and int(digest([document])[:2], 16) % _ENDS == 0

    for documents in preprocessing.groups(
        corpus, Document.length, is_last, max_documents=max_documents, max_characters=max_characters
    ):
        yield Group(documents, Shard(digest(documents), len(documents)))


def digest(documents: Sequence[Document]) -> str:
    """Compute SHA-256 over ids and texts, with the length before each of them."""
    whole = hashlib.sha256()
    for document in documents:
        for part in (document.id or "", document.text):
            encoded = part.encode()
            whole.update(len(encoded).to_bytes(8, "little") + encoded)
    return whole.hexdigest()


def batch_of(documents: Sequence[Document]) -> dict[str, Any]:
    """Return the columns of a group; a document that cannot be read has a reason and no text."""
    import numpy as np

    columns = {
        "place": [document.place for document in documents],
        "id": [document.id for document in documents],
        "text": [document.text for document in documents],
        "reason": [document.error for document in documents],
    }
    return {"document": np.arange(len(documents)), **columns}


_Pending = tuple[int, Group, float]  # the number of a shard, its documents, and their share of the corpus
_Results = Iterator[tuple[_Pending, tuple["Choice", Mapping[str, Any]]]]


def encode_file(
    file: DocumentFile,
    output: Path,
    encode: "BatchEncoder",
    settings: Mapping[str, object],
    *,
    limit: int | None = None,
    processes: int | None = None,
    ray: str | None = None,
    timeout: float = TIMEOUT,
    skip_invalid: bool = False,
    update: bool = False,
    say: Callable[[str], object] = lambda message: None,
    say_engine: Callable[["Choice"], object] = lambda choice: None,
    phrase: Callable[[str], str] = str,
) -> str | None:
    """Write the missing vectors of documents; return counts, or None if none were missing.

    Args:
        file: the documents.
        output: the parquet file.
        encode: computes the vectors of a group of documents.
        settings: the other things that the vectors depend on.
        limit: encode only the first N documents. None: all.
        processes: the number of processes. None: this process, or one for each processor of a cluster.
        ray: the address of a cluster; "" starts one on this machine; None uses no cluster.
        timeout: seconds for a shard.
        skip_invalid: leave out and list documents that cannot be encoded.
        update: encode documents that are new since the file was finished, and documents that were left out.
        say: receives a message about each process that is replaced.
        say_engine: receives once what computes the hidden states.
        phrase: changes the words of a reason why a document cannot be encoded.

    Raises:
        DataError, VectorsError, CheckpointError, WorkerError, OSError: the documents, the output, the model or a process failed.
        ValueError: options that contradict each other.
    """
    from uwaga.encode.progress import Progress, bar
    from uwaga.encode.report import COLUMNS

    check_output(output)
    vectors, earlier_shards = VectorFile(output, settings), None
    if (finished := vectors.finished()) is not None:
        earlier_shards = _to_update(_first(file, limit), file.path, output, *finished, update=update)
        if earlier_shards is None:
            vectors.clear()
            return None
    started = time.perf_counter()
    documents = tokens = 0  # documents that are finished, and tokens that the model has read
    done = earlier = 0.0  # the share of the corpus that is finished, and the share of earlier runs

    def finish(pending: _Pending, skipped: Sequence[tuple[str, str]], read: int, *, is_earlier: bool = False) -> None:
        nonlocal documents, tokens, done, earlier
        number, group, share = pending
        if skipped:
            vectors.leave_out(number, skipped)
        documents, tokens, done = documents + len(group.documents), tokens + read, done + share
        earlier += share * is_earlier
        show(Progress(documents, tokens, time.perf_counter() - started, None), done, earlier)

    def unfinished() -> Iterator[_Pending]:
        count, position = 0, 0.0
        for number, group in enumerate(groups(_first(file, limit))):
            count, before = count + len(group.documents), position
            position = group.documents[-1].position
            if limit is not None:
                position = max(position, count / limit)
            vectors.expect(group.shard)
            pending = (number, group, position - before)
            skipped = vectors.stored(group.shard)
            if skipped is None or (skipped and update):  # shards that left documents out are tried again
                yield pending
            else:
                entries = [(group.documents[place].place, reason) for place, reason in skipped]
                finish(pending, entries, 0, is_earlier=True)

    vectors.begin(earlier_shards)
    try:
        with bar(1.0) as show:
            show(Progress(0, 0, 0.0, None), 0.0)
            for number, (pending, (choice, columns)) in enumerate(
                _results(unfinished(), encode, processes, ray, timeout, say)
            ):
                if number == 0:
                    say_engine(choice)
                left_out = _left_out(columns, phrase)
                if left_out and not skip_invalid:
                    raise InvalidDocumentError("{}: {}".format(*left_out[0][1:]))
                is_good = columns["error"] == None  # noqa: E711  # of each row
                kept = {"document": columns["document"][is_good]}
                if any(id is not None for id in columns["id"]):
                    kept["id"] = columns["id"][is_good]
                kept |= {name: columns[name][is_good] for name in COLUMNS if name != "document"}
                reasons = [(document, reason) for document, _, reason in left_out]
                vectors.add(pending[1].shard, kept, columns["vector"][is_good], reasons)
                finish(pending, [(place, reason) for _, place, reason in left_out], int(kept["tokens"].sum()))
            return _finish(vectors)
    finally:
        vectors.leave()


def _first(file: DocumentFile, limit: int | None) -> Iterator[Document]:
    return islice(file, None if limit is None else min(limit, sys.maxsize))


def _to_update(
    documents: Iterator[Document],
    source: Path,
    output: Path,
    made_from: str,
    shards: list[Shard] | None,
    has_same_settings: bool,
    *,
    update: bool,
) -> list[Shard] | None:
    """Return the shards of a finished file that needs an update, else None. Raises VectorsError.

    made_from, shards, has_same_settings: as `VectorFile.finished`.
    """
    if shards is None:
        # The file is of a version that had larger groups and no shards.
        from uwaga.encode import preprocessing

        found = [Shard(digest(group), len(group)) for group in preprocessing.groups(documents, Document.length)]
    else:
        found = [group.shard for group in groups(documents)]
    skipped = sum(shard.skipped for shard in shards or ())
    if digest_of_shards(found) == made_from and not (update and skipped):
        if skipped and not has_same_settings:
            raise VectorsError(
                f"{output} exists already, and {skipped:,} documents were left out by the options that it was made with; --update encodes those "
                "that can be with these; or give another --output, or move the file away"
            )
        return None
    if not update or shards is None:
        can = "--update encodes what is new; or " if shards is not None else ""
        raise VectorsError(
            f"{output} exists already and was made from other documents than {source} holds; "
            f"{can}give another --output, or move the file away"
        )
    return shards


def _left_out(columns: Mapping[str, Any], phrase: Callable[[str], str]) -> list[tuple[int, str, str]]:
    """Return number, place and reason of the documents of a shard that have no vector."""
    return [
        (int(columns["document"][row]), columns["place"][row], columns["reason"][row] or phrase(error))
        for row, error in enumerate(columns["error"])
        if error is not None
    ]


def _results(
    unfinished: Iterator[_Pending],
    encode: "BatchEncoder",
    processes: int | None,
    ray: str | None,
    timeout: float,
    say: Callable[[str], object],
) -> _Results:
    """Yield the result of each shard, and what computed it."""
    if ray is None and (processes or 1) == 1:
        waiting: deque[_Pending] = deque()

        def batches() -> Iterator[Mapping[str, Any]]:
            for pending in unfinished:
                waiting.append(pending)
                yield batch_of(pending[1].documents)

        choice = encode.load().explain()
        yield from ((waiting.popleft(), (choice, columns)) for columns in encode.stream(batches()))
        return
    from uwaga.encode import processes as pools

    items = ((pending, batch_of(pending[1].documents)) for pending in unfinished)
    run = partial(pools.map_batches, processes=processes or 1, say=say)
    if ray is not None:
        run = partial(pools.map_by_ray, address=ray or None, actors=processes)
    yield from run(encode.explained, items, timeout=timeout, describe=lambda pending: pending[1].places)


def _finish(vectors: VectorFile) -> str:
    """Write the file of all shards, and return its counts in words. Raises OSError."""
    from uwaga.encode.report import COLUMNS, Report, Summary

    total = Summary()
    for table in vectors.finish():
        columns: dict[str, Any] = {name: table[name].to_numpy() for name in COLUMNS}
        total = Summary(*map(sum, zip(total, Report(**columns).summary, strict=True)))
    skipped = sum(shard.documents for shard in vectors.order) - total.documents
    return f"{total}; skipped: {skipped:,}, listed in {vectors.skipped_path}" if skipped else str(total)
