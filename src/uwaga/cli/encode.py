"""`uwaga encode`: a file of documents to a parquet file of vectors. An interrupted run is resumed by the same command."""

import hashlib
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.terminal import escape_controls
from uwaga.cli.terminal import echo, fail, in_option_names, say_engine
from uwaga.models.checkpoints.directories import DEFAULT_ENCODER
from uwaga.models.text.corpus import Document, DocumentFile, InvalidDocumentError
from uwaga.models.text.passages import Split
from uwaga.models.text.vector_files import (
    Shard,
    Skipped,
    VectorFile,
    VectorsError,
    check_numpy,
    digest_of_shards,
    write_numpy,
)

if TYPE_CHECKING:
    from uwaga.models.text.encoder import Encoded
    from uwaga.models.text.progress import Listener, Progress

Overflow = Literal["error", "truncate", "mean", "windows"]
Storage = Literal["float32", "bfloat16"]
_SKIP = "--skip-invalid leaves out such documents and lists them"


def encode(
    documents: Annotated[
        Path, typer.Argument(help="A file .jsonl, .csv, .txt (a document in each line that is not blank) or .parquet.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The parquet file to write.")],
    model: Annotated[str, typer.Option(help="minilm, a model's directory, or its id on the hub.")] = DEFAULT_ENCODER,
    overflow: Annotated[Overflow, typer.Option(help="What to do with documents longer than the model.")] = "error",
    overlap: Annotated[int, typer.Option(help="Tokens that neighbouring windows share.")] = 0,
    dtype: Annotated[Storage, typer.Option(help="Of weights and arithmetic; vectors are float32.")] = "float32",
    tokens_per_batch: Annotated[int, typer.Option(help="Tokens that the model reads in one forward pass.")] = 2048,
    normalize: Annotated[bool | None, typer.Option(help="Vectors of length 1; else as the model says.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Put before every document; else the model's default.")] = None,
    prompt_name: Annotated[
        str | None, typer.Option(help="A prompt of the model by its name, such as document.")
    ] = None,
    truncate_dim: Annotated[int | None, typer.Option(min=1, help="So many first numbers of every vector.")] = None,
    spans: Annotated[
        Split | None, typer.Option(help="A vector for each, made with the whole document in sight: late chunking.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The field of the text; else text.")] = None,
    id: Annotated[str | None, typer.Option(help="The field of an id; else id, where the documents have it.")] = None,
    skip_invalid: Annotated[
        bool,
        typer.Option("--skip-invalid", help="Leave out documents that cannot be encoded, and list them in a file."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Encode the first so many documents; else all.")] = None,
    numpy: Annotated[Path | None, typer.Option(help="A .npy file for the vectors too, (documents, width).")] = None,
) -> None:
    """Encode documents to vectors. If it is interrupted, the same command resumes it."""
    options = {
        "overflow": overflow,
        "overlap": overlap,
        "tokens_per_batch": tokens_per_batch,
        "normalize": normalize,
        "prompt": prompt,
        # Only where they are given: files of versions without these options are taken for finished as before.
        **({"skip_invalid": True} if skip_invalid else {}),
        **({} if prompt_name is None else {"prompt_name": prompt_name}),
        **({} if truncate_dim is None else {"truncate_dim": truncate_dim}),
        **({} if spans is None else {"spans": spans}),
    }
    _check_pyarrow()
    try:
        if numpy is not None:
            check_numpy(numpy)
        file = DocumentFile(
            documents, text_field=text, id_field=id, keep_invalid=skip_invalid, skip_blank=not skip_invalid
        )
        settings = {"text": text, "id": id, **({} if limit is None else {"limit": limit})}
        message = _encode(_Corpus(file, limit), output, model, dtype, options, settings)
        rows = None if numpy is None else write_numpy(output, numpy)
    except InvalidDocumentError as error:
        fail("encode", f"{error}\n{_SKIP}")
    except (DataError, VectorsError, CheckpointError) as error:
        fail("encode", str(error))
    except OSError as error:
        where, why = error.filename or output, error.strerror or str(error)
        fail("encode", f"{where}: {why}. Finished shards are kept; the same command resumes")
    except KeyboardInterrupt:
        echo("uwaga encode: interrupted; the same command resumes", err=True)
        raise typer.Exit(130) from None
    echo(f"{output}: {message}")
    if rows is not None:
        echo(f"{numpy}: {rows:,} vectors")


def _check_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        fail("encode", "needs pyarrow: pip install 'uwaga[encode]'")


class _Corpus:
    """The first documents of a file: `limit` of them, or all."""

    def __init__(self, file: DocumentFile, limit: int | None) -> None:
        self.path, self.limit, self._file = file.path, limit, file

    def __iter__(self) -> Iterator[Document]:
        return itertools.islice(self._file, None if self.limit is None else min(self.limit, sys.maxsize))

    def fraction(self, documents: int, position: float) -> float:
        """How much of it `documents` are, the last of which ends at `position` of the file."""
        return position if self.limit is None else max(position, documents / self.limit)


def _encode(
    corpus: _Corpus, output: Path, model: str, dtype: str, options: dict[str, Any], settings: Mapping[str, object]
) -> str:
    """The message at the end."""
    folder, fingerprint = _model(model)
    _check_output(output)
    vectors = VectorFile(output, {"model": fingerprint, "dtype": dtype, **options, **settings})
    digest = vectors.finished_digest()
    if digest is not None:
        if digest_of_shards([group.shard for group in groups(corpus)]) != digest:
            raise VectorsError(
                f"{output} exists already and was made from other documents than {corpus.path} holds; "
                "give another --output, or move the file away"
            )
        vectors.clear()
        return "finished already"
    vectors.begin()
    try:
        run = _Run(corpus, vectors, folder, dtype, options)
        run.run()
        return _finish(vectors)
    finally:
        vectors.leave()


def _model(model: str) -> tuple[Path, str]:
    """The model's directory and its fingerprint, before anything is loaded. Raises CheckpointError: it gives no vectors of documents."""
    from uwaga.models.checkpoints import directories
    from uwaga.models.text import sentence_config
    from uwaga.models.text.sentence_config import fingerprint

    folder = directories.find(model, None)
    if sentence_config.read(folder).tokens is not None:
        raise CheckpointError(
            f"{folder} holds a ColBERT model, which gives a vector to every token and none to a document; `uwaga store add` takes it"
        )
    return folder, fingerprint(folder, directories.transformer(folder))


def _check_output(output: Path) -> None:
    if output.suffix != ".parquet":
        raise VectorsError(f"{output}: the name must end in .parquet")
    if not output.parent.is_dir():
        raise VectorsError(f"{output}: there is no folder {output.parent}")


class Group(NamedTuple):
    """Documents that become one shard. Which they are depends on the documents alone, so that a resumed run has the same."""

    documents: list[Document]
    shard: Shard


def groups(corpus: Iterable[Document]) -> Iterator[Group]:
    """The documents in groups, each with its digest. Raises DataError."""
    from uwaga.models.text import preprocessing

    for documents in preprocessing.groups(corpus, Document.length):
        yield Group(documents, Shard(digest(documents), len(documents)))


def digest(documents: Sequence[Document]) -> str:
    """SHA-256 over ids and texts, each preceded by its length."""
    whole = hashlib.sha256()
    for document in documents:
        for part in (document.id or "", document.text):
            encoded = part.encode("utf-8", "surrogatepass")  # an id of JSON may have a lone surrogate
            whole.update(len(encoded).to_bytes(8, "little") + encoded)
    return whole.hexdigest()


class _Run:
    """Encodes the groups of a corpus that are not finished, each to a shard.

    Args:
        corpus: the documents.
        vectors: the output, begun.
        folder: the model's.
        dtype: of its weights, by name.
        options: of TextEncoder.encode_groups.
    """

    def __init__(
        self, corpus: _Corpus, vectors: VectorFile, folder: Path, dtype: str, options: Mapping[str, Any]
    ) -> None:
        self._corpus, self._vectors = corpus, vectors
        self._folder, self._dtype, self._options = folder, dtype, options
        self._finished = list(vectors.finished)  # by earlier runs
        self._skipped = sum(shard.documents for shard in self._finished)
        self._pending: deque[Group] = deque()  # given to the encoder, without a result yet
        self._done = 0  # documents encoded by this run
        self._position = 0.0  # in the file, of the end of the last finished document

    def run(self) -> None:
        """Raises DataError, VectorsError, CheckpointError, OSError."""
        from uwaga.models.text.progress import bar

        with bar(1.0, self._fraction) as listener:
            for encoded in self._results(listener):
                group = self._pending.popleft()
                columns, skipped = self._columns(group, encoded), self._left_out(group, encoded)
                self._vectors.add(group.shard, columns, encoded.vectors, skipped)
                self._done += group.shard.documents

    def _fraction(self, progress: "Progress") -> float:
        """How much of the corpus is encoded: up to the end of the last finished document, whatever was read ahead."""
        within = progress.documents - self._skipped - self._done
        if within > 0:  # a batch of the first pending group
            self._position = self._pending[0].documents[within - 1].position
        return self._corpus.fraction(progress.documents, self._position)

    def _results(self, listener: "Listener") -> Iterator["Encoded"]:
        import torch

        from uwaga.models.text.encoder import TextEncoder
        from uwaga.models.text.report import DocumentError

        encoder = TextEncoder.load(self._folder, dtype=getattr(torch, self._dtype))
        say_engine("encode", str(self._folder), encoder.explain())

        def listen(progress: "Progress") -> None:
            listener(progress._replace(documents=progress.documents + self._skipped))

        try:
            encoded = encoder.encode_groups(self._texts(), **self._options, progress=listen)
        except ValueError as error:  # options that do not go together, or not with the model
            message = in_option_names(str(error).removeprefix("TextEncoder: "), self._options)
            raise typer.BadParameter(escape_controls(message)) from error
        try:
            yield from encoded
        except DocumentError as error:
            # Results come in order: the error is in the first pending group.
            document = self._pending[0].documents[error.document - self._done]
            reason = in_option_names(error.reason, self._options)
            raise InvalidDocumentError(f"{document.place}: {reason}") from error

    def _texts(self) -> Iterator[list[str]]:
        """The texts of each group that is not finished."""
        count = 0
        for count, group in enumerate(groups(self._corpus), start=1):
            if count > len(self._finished):
                self._pending.append(group)
                yield [document.text for document in group.documents]
            elif group.shard != self._finished[count - 1]:
                places = f"{group.documents[0].place} to {group.documents[-1].place}"
                what = f"was begun with other documents than those from {places}"
                raise VectorsError(f"{self._vectors.path} {what}; give another --output")
            else:
                self._position = group.documents[-1].position
        if count < len(self._finished):
            what = f"was begun with more documents than {self._corpus.path} has"
            raise VectorsError(f"{self._vectors.path} {what}; give another --output")

    def _columns(self, group: Group, encoded: "Encoded") -> dict[str, Any]:
        """The columns of a shard beside its vectors."""
        report, ids = encoded.report, [document.id for document in group.documents]
        columns: dict[str, Any] = {"document": report.document + self._skipped}
        if any(id is not None for id in ids):
            columns["id"] = [ids[number] for number in (report.document - self._done).tolist()]
        others = ("start", "stop", "characters", "tokens", "windows")
        return columns | {name: getattr(report, name) for name in others}

    def _left_out(self, group: Group, encoded: "Encoded") -> list[Skipped]:
        """The documents of a group that were not encoded. What could not be read comes as an empty text, with its own reason."""
        results = []
        for error in encoded.invalid:
            document = group.documents[error.document - self._done]
            reason = in_option_names(error.reason, self._options)
            results.append(Skipped(document.place, document.error or reason))
        return results


def _finish(vectors: VectorFile) -> str:
    """Write the file of all shards; its counts, for a message. Raises OSError, VectorsError."""
    from uwaga.models.text.report import COLUMNS, Report, Summary

    total = Summary()
    for table in vectors.finish():
        columns = {name: table[name].to_numpy() for name in COLUMNS}
        total = total.plus(Report.of_columns(columns).summary)
    skipped = sum(shard.documents for shard in vectors.finished) - total.documents
    return f"{total}; skipped: {skipped:,}, listed in {vectors.skipped_path}" if skipped else str(total)
