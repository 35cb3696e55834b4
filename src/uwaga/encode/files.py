"""A file of documents to a parquet file of vectors, shard by shard, by this process, by several, or by a Ray cluster."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uwaga.data.documents import Document, InvalidDocumentError
from uwaga.encode import processes, ray_actors
from uwaga.encode.processes import TIMEOUT
from uwaga.encode.shards import Corpus, Group, batch_of, digest, groups
from uwaga.encode.vector_files import (
    Finished,
    FinishedShard,
    Shard,
    Skipped,
    VectorFile,
    VectorsError,
    digest_of_shards,
)

if TYPE_CHECKING:
    from uwaga.encode.batches import BatchEncoder
    from uwaga.ops.engine_choice import Choice

Results = Iterator[tuple["Pending", tuple["Choice", Mapping[str, Any]]]]


class Engine(NamedTuple):
    """What computes."""

    processes: int | None = None  # None: this one; of a cluster, one for each processor
    ray: str | None = None  # the address of a cluster, "" for one on this machine; None: none
    timeout: float = TIMEOUT  # seconds for a shard

    @property
    def is_this_process(self) -> bool:
        return self.ray is None and (self.processes or 1) == 1


class Done(NamedTuple):
    """How much is done, for a progress bar."""

    documents: int = 0  # finished
    tokens: int = 0  # that the model has read
    share: float = 0.0  # of the corpus that is finished, from 0 to 1
    earlier: float = 0.0  # of that, by earlier runs


class Listener(NamedTuple):
    """What a run tells of itself."""

    show: Callable[[Done], object] = lambda done: None
    say: Callable[[str], object] = lambda message: None  # processes that were replaced
    say_engine: Callable[["Choice"], object] = lambda choice: None  # once: what computes the hidden states
    phrase: Callable[[str], str] = str  # words why a document cannot be encoded


class Pending(NamedTuple):
    """A group that is being encoded."""

    group: Group
    place: int  # in the order of shards
    share: float  # of its documents in the corpus


def encode_file(
    corpus: Corpus,
    output: Path,
    encode: "BatchEncoder",
    settings: Mapping[str, object],
    *,
    engine: Engine,
    skip_invalid: bool = False,
    update: bool = False,
    listener: Listener,
) -> str | None:
    """Write the vectors of a corpus, or what is missing of them; say how many documents and tokens there are, or None if it was finished.

    settings: what the vectors depend on besides the documents. skip_invalid: leave out and list documents that cannot be encoded.
    update: encode what is new since the file was finished, and what was left out.

    Raises DataError, VectorsError, CheckpointError, WorkerError, OSError; ValueError: options that do not go together.
    """
    if output.suffix != ".parquet":
        raise VectorsError(f"{output}: the name must end in .parquet")
    if not output.parent.is_dir():
        raise VectorsError(f"{output}: there is no folder {output.parent}")
    vectors = VectorFile(output, settings)
    earlier = None
    if (finished := vectors.finished()) is not None:
        earlier = _to_update(corpus, output, finished, update=update)
        if earlier is None:
            vectors.clear()
            return None
    vectors.begin(earlier)
    try:
        _encode_shards(corpus, vectors, encode, engine, listener, skip_invalid=skip_invalid, retry=update)
        return _finish(vectors)
    finally:
        vectors.leave()


def _to_update(corpus: Corpus, output: Path, finished: Finished, *, update: bool) -> list[FinishedShard] | None:
    """The shards of a finished file that is written again; None if there is nothing to do. Raises VectorsError."""
    if finished.shards is None:
        # Of a version whose groups were larger and no shards.
        from uwaga.encode import preprocessing

        parts = preprocessing.groups(corpus, Document.length)
        shards = [Shard(digest(documents), len(documents)) for documents in parts]
    else:
        shards = [group.shard for group in groups(corpus)]
    skipped = sum(each.skipped for each in finished.shards or ())
    if digest_of_shards(shards) == finished.digest and not (update and skipped):
        if skipped and not finished.has_same_settings:
            raise VectorsError(
                f"{output} exists already, and {skipped:,} documents were left out by the options that it was made with; --update encodes those "
                "that can be with these; or give another --output, or move the file away"
            )
        return None
    if not update or finished.shards is None:
        can = "--update encodes what is new; or " if finished.shards is not None else ""
        raise VectorsError(
            f"{output} exists already and was made from other documents than {corpus.path} holds; "
            f"{can}give another --output, or move the file away"
        )
    return finished.shards


def _encode_shards(
    corpus: Corpus,
    vectors: VectorFile,
    encode: "BatchEncoder",
    engine: Engine,
    listener: Listener,
    *,
    skip_invalid: bool,
    retry: bool,
) -> None:
    """Write the shards that are not finished. retry: those that left documents out too."""
    from uwaga.encode.report import COLUMNS

    done = Done()
    listener.show(done)

    def finish(pending: Pending, skipped: Sequence[Skipped], tokens: int, *, earlier: bool = False) -> None:
        nonlocal done
        if skipped:
            vectors.leave_out(pending.place, skipped)
        before = done.earlier + (pending.share if earlier else 0.0)
        documents = done.documents + len(pending.group.documents)
        done = Done(documents, done.tokens + tokens, done.share + pending.share, before)
        listener.show(done)

    def unfinished() -> Iterator[Pending]:
        documents, position = 0, 0.0
        for group in groups(corpus):
            documents += len(group.documents)
            after = corpus.fraction(documents, group.documents[-1].position)
            pending = Pending(group, vectors.expect(group.shard), after - position)
            position = after
            skipped = vectors.stored(group.shard)
            if skipped is None or (skipped and retry):
                yield pending
            else:
                entries = [Skipped(group.documents[number].place, reason) for number, reason in skipped]
                finish(pending, entries, 0, earlier=True)

    for number, (pending, (choice, columns)) in enumerate(_results(unfinished(), encode, engine, listener.say)):
        if number == 0:
            listener.say_engine(choice)
        left_out = _left_out(columns, listener.phrase)
        if left_out and not skip_invalid:
            raise InvalidDocumentError("{}: {}".format(*left_out[0][1]))
        is_good = columns["error"] == None  # noqa: E711  # of each row
        kept = {"document": columns["document"][is_good]}
        if any(id is not None for id in columns["id"]):
            kept["id"] = columns["id"][is_good]
        kept |= {name: columns[name][is_good] for name in COLUMNS if name != "document"}
        reasons = [(place, entry.reason) for place, entry in left_out]
        vectors.add(pending.group.shard, kept, columns["vector"][is_good], reasons)
        finish(pending, [entry for _, entry in left_out], int(kept["tokens"].sum()))


def _left_out(columns: Mapping[str, Any], phrase: Callable[[str], str]) -> list[tuple[int, Skipped]]:
    """The documents of a shard that cannot be read or encoded, by their numbers in it."""
    rows = [row for row, error in enumerate(columns["error"]) if error is not None]
    reasons = [columns["reason"][row] or phrase(columns["error"][row]) for row in rows]
    return [
        (int(columns["document"][row]), Skipped(columns["place"][row], reason))
        for row, reason in zip(rows, reasons, strict=True)
    ]


def _results(
    unfinished: Iterator[Pending], encode: "BatchEncoder", engine: Engine, say: Callable[[str], object]
) -> Results:
    from uwaga.encode.batches import Explained

    if engine.is_this_process:
        return _here(unfinished, encode)
    items = ((pending, batch_of(pending.group.documents)) for pending in unfinished)
    options: dict[str, Any] = {"timeout": engine.timeout, "describe": lambda pending: pending.group.places}
    if engine.ray is not None:
        address = engine.ray or None
        return ray_actors.map_batches(Explained(encode), items, address=address, actors=engine.processes, **options)
    import torch

    count = engine.processes or 1
    threads = max(1, torch.get_num_threads() // count)  # cores that this process may use, or OMP_NUM_THREADS
    return processes.map_batches(Explained(encode), items, processes=count, threads=threads, say=say, **options)


def _here(unfinished: Iterator[Pending], encode: "BatchEncoder") -> Results:
    waiting: deque[Pending] = deque()

    def batches() -> Iterator[Mapping[str, Any]]:
        for pending in unfinished:
            waiting.append(pending)
            yield batch_of(pending.group.documents)

    choice = encode.load().explain()
    for columns in encode.stream(batches()):
        yield waiting.popleft(), (choice, columns)


def _finish(vectors: VectorFile) -> str:
    """Write the file of all shards; its counts, for a message. Raises OSError, VectorsError."""
    from uwaga.encode.report import COLUMNS, Report, Summary

    total = Summary()
    for table in vectors.finish():
        columns = {name: table[name].to_numpy() for name in COLUMNS}
        total = total.plus(Report.of_columns(columns).summary)
    skipped = sum(shard.documents for shard in vectors.order) - total.documents
    return f"{total}; skipped: {skipped:,}, listed in {vectors.skipped_path}" if skipped else str(total)
