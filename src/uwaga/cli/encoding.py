"""The work of `uwaga encode`: groups of documents, the finished ones left out, to shards of vectors."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from uwaga._base.terminal import escape_controls
from uwaga.cli.corpus import Corpus, CorpusError, Document, digest
from uwaga.cli.vectors import Shard, Vectors, VectorsError, whole_digest

if TYPE_CHECKING:
    from uwaga.models.text.progress import Listener, Progress
    from uwaga.models.text.reader import Encoded
    from uwaga.models.text.report import Summary


class Group(NamedTuple):
    """Documents that become one shard: which they are depends on the documents alone."""

    documents: list[Document]
    shard: Shard


class Encoding:
    """One run over a corpus.

    Args:
        corpus: the documents.
        vectors: where they go, begun.
        folder: the model's.
        dtype: of its weights, by name.
        how: options of TextEncoder.encode_groups.
    """

    def __init__(self, corpus: Corpus, vectors: Vectors, folder: Path, dtype: str, how: Mapping[str, Any]) -> None:
        self._corpus, self._vectors = corpus, vectors
        self._folder, self._dtype, self._how = folder, dtype, how
        self._finished = list(vectors.finished)
        self._left_out = sum(shard.documents for shard in self._finished)
        self._ahead: deque[Group] = deque()  # taken by the encoder, and not yet back
        self._done = 0  # documents that came back

    def run(self) -> None:
        """Encode what is not finished. Raises CorpusError, VectorsError, CheckpointError, OSError."""
        from uwaga.models.text.progress import bar

        with bar(1.0, lambda _: self._corpus.position / self._corpus.size) as listener:
            for encoded in self._results(listener):
                group = self._ahead.popleft()
                self._vectors.add(group.shard, self._columns(group, encoded), encoded.vectors)
                self._done += group.shard.documents

    def _results(self, listener: "Listener") -> Iterator["Encoded"]:
        import torch

        from uwaga.models.text.encoder import TextEncoder
        from uwaga.models.text.errors import DocumentError

        encoder = TextEncoder.load(self._folder, dtype=getattr(torch, self._dtype))

        def listen(progress: "Progress") -> None:
            listener(progress._replace(documents=progress.documents + self._left_out))

        try:
            encoded = encoder.encode_groups(self._texts(), **self._how, progress=listen)
        except ValueError as error:  # options that do not go together, or not with the model
            raise typer.BadParameter(escape_controls(str(error))) from error
        try:
            yield from encoded
        except DocumentError as error:
            # Results come in order: the first group ahead is the one that failed.
            document = self._ahead[0].documents[error.document - self._done]
            raise CorpusError(f"{document.place}: {error.reason}") from error

    def _texts(self) -> Iterator[list[str]]:
        """The groups that are not finished, as the encoder takes them."""
        count = 0
        for count, group in enumerate(groups(self._corpus), start=1):
            if count > len(self._finished):
                self._ahead.append(group)
                yield [document.text for document in group.documents]
            elif group.shard != self._finished[count - 1]:
                ends = f"{group.documents[0].place} to {group.documents[-1].place}"
                raise VectorsError(f"{self._vectors.path} was begun with other documents than those from {ends}")
        if count < len(self._finished):
            raise VectorsError(f"{self._vectors.path} was begun with more documents than {self._corpus.path} has")

    def _columns(self, group: Group, encoded: "Encoded") -> dict[str, Any]:
        """What a row of the file says beside its vector."""
        report, names = encoded.report, [document.id for document in group.documents]
        columns: dict[str, Any] = {"document": report.document + self._left_out}
        if names[0] is not None:
            columns["id"] = [names[number] for number in (report.document - self._done).tolist()]
        names_of_others = ("start", "stop", "characters", "tokens", "windows")
        return columns | {name: getattr(report, name) for name in names_of_others}


def groups(corpus: Corpus) -> Iterator[Group]:
    """The documents in groups, each with its digest."""
    from uwaga.models.text import packing

    for documents in packing.groups(corpus, lambda document: len(document.text)):
        yield Group(documents, Shard(digest(documents), len(documents)))


def is_of(corpus: Corpus, whole: str) -> bool:
    """Whether the digest of a whole file is that of these documents."""
    return whole_digest([group.shard for group in groups(corpus)]) == whole


def finish(vectors: Vectors) -> "Summary":
    """Put the file in its place. Raises OSError."""
    from uwaga.models.text.report import Report, Summary

    total = Summary()
    for table in vectors.finish():
        columns = {field.name: table[field.name].to_numpy() for field in fields(Report)}
        total = total.plus(Report(**columns).summary)
    return total
