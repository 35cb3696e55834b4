"""`uwaga encode`: a file of documents to a parquet file of vectors, by this process, by several of this machine or by a Ray cluster. An
interrupted run is resumed by the same command."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.terminal import escape_controls
from uwaga.cli.terminal import echo, fail, in_option_names, say_engine
from uwaga.data.documents import Document, DocumentFile, InvalidDocumentError
from uwaga.data.passages import Split
from uwaga.encode.processes import TIMEOUT, WorkerError
from uwaga.encode.shards import Corpus, batch_of, digest, groups, read_groups
from uwaga.encode.vector_files import (
    Finished,
    FinishedShard,
    Shard,
    Skipped,
    VectorFile,
    VectorsError,
    check_numpy,
    digest_of_shards,
    write_numpy,
)
from uwaga.models.checkpoints.directories import DEFAULT_ENCODER

if TYPE_CHECKING:
    from uwaga.encode.batches import BatchEncoder
    from uwaga.ops.engine_choice import Choice

Overflow = Literal["error", "truncate", "mean", "windows"]
Storage = Literal["float32", "bfloat16"]
_SKIP = "--skip-invalid leaves out such documents and lists them"
HERE = "here"  # --ray without an address


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
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Encode what is new in the documents, and what was left out, and take the rest from the file.",
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="How many encode, sharing the cores and the weights' memory; else one, with --ray one for each processor.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="By a Ray cluster: its address, auto, or nothing to start one on this machine (before another option or the documents, or at the end).",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="Seconds without a sign of life, after which a process is replaced; with --ray, without a result, after which the command ends.",
        ),
    ] = TIMEOUT,
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
        engine = _Engine(processes, ray, timeout)
        message = _encode(Corpus(file, limit), output, model, dtype, options, settings, engine, update=update)
        rows = None if numpy is None else write_numpy(output, numpy)
    except InvalidDocumentError as error:
        fail("encode", f"{error}\n{_SKIP}")
    except (DataError, VectorsError, CheckpointError) as error:
        fail("encode", str(error))
    except WorkerError as error:
        fail("encode", f"{error}. Finished shards are kept; the same command resumes")
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


class _Engine(NamedTuple):
    """What computes."""

    processes: int | None
    ray: str | None  # an address
    timeout: float  # seconds


def _encode(
    corpus: Corpus,
    output: Path,
    model: str,
    dtype: str,
    options: dict[str, Any],
    settings: Mapping[str, object],
    engine: _Engine,
    *,
    update: bool,
) -> str:
    """The message at the end."""
    from uwaga.encode.batches import BatchEncoder

    is_alone = engine.ray is None and (engine.processes or 1) == 1
    of_model = {name: value for name, value in options.items() if name != "skip_invalid"}
    encode = BatchEncoder(model, dtype=dtype, shared=not is_alone, **of_model)
    _check_output(output)
    vectors = VectorFile(output, {"model": encode.fingerprint, "dtype": dtype, **options, **settings})
    earlier = None
    if (finished := vectors.finished()) is not None:
        earlier = _to_update(corpus, output, finished, update=update)
        if earlier is None:
            vectors.clear()
            return "finished already"
    vectors.begin(earlier)
    try:
        _Run(corpus, vectors, encode, engine, skip=bool(options.get("skip_invalid")), retry=update).run()
        return _finish(vectors)
    finally:
        vectors.leave()


def _to_update(corpus: Corpus, output: Path, finished: Finished, *, update: bool) -> list[FinishedShard] | None:
    """The shards of a finished file that is written anew; None where there is nothing to do. Raises VectorsError."""
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


def _check_output(output: Path) -> None:
    if output.suffix != ".parquet":
        raise VectorsError(f"{output}: the name must end in .parquet")
    if not output.parent.is_dir():
        raise VectorsError(f"{output}: there is no folder {output.parent}")


class _Pending(NamedTuple):
    """A group that is being encoded."""

    place: int  # in the order of shards
    shard: Shard
    first: int  # the number of its first document
    width: float  # of its documents in the corpus, as a fraction
    places: str  # where its documents are
    documents: list[Document]  # none where others read them


class _Run:
    """Encodes the groups of a corpus that are not finished, each to a shard.

    Args:
        corpus: the documents.
        vectors: the output, begun.
        encode: what is computed.
        engine: what computes.
        skip: whether documents that cannot be encoded are left out.
        retry: whether groups are encoded again of which documents were left out.
    """

    def __init__(
        self,
        corpus: Corpus,
        vectors: VectorFile,
        encode: "BatchEncoder",
        engine: _Engine,
        *,
        skip: bool,
        retry: bool,
    ) -> None:
        self._corpus, self._vectors, self._encode, self._engine = corpus, vectors, encode, engine
        self._skip, self._retry = skip, retry
        self._documents = self._tokens = 0  # finished; read by the model
        self._done = self._earlier = 0.0  # of the corpus; of that by earlier runs
        self._show: Callable[[], object] = lambda: None

    def run(self) -> None:
        """Raises DataError, VectorsError, CheckpointError, WorkerError, OSError."""
        from uwaga.encode.progress import Progress, bar

        with bar(1.0, lambda _: self._done, lambda: self._earlier) as listener:
            started = time.perf_counter()
            self._show = lambda: listener(Progress(self._documents, self._tokens, time.perf_counter() - started, None))
            for pending, columns in self._results():
                self._take(pending, columns)

    def _results(self) -> Iterator[tuple[_Pending, Mapping[str, Any]]]:
        by = self._here
        if self._engine.ray is not None:
            by = self._by_ray
        elif (self._engine.processes or 1) > 1:
            by = self._by_processes
        try:
            yield from by()
        except ValueError as error:  # options that do not go together, or not with the model
            if not str(error).startswith("TextEncoder: "):
                raise
            message = in_option_names(str(error).removeprefix("TextEncoder: "), self._encode.options)
            raise typer.BadParameter(escape_controls(message)) from error

    def _here(self) -> Iterator[tuple[_Pending, Mapping[str, Any]]]:
        waiting: deque[_Pending] = deque()

        def batches() -> Iterator[Mapping[str, Any]]:
            for pending in self._pending():
                waiting.append(pending)
                yield batch_of(pending.documents)

        self._say_engine(self._encode.load().explain())
        for columns in self._encode.stream(batches()):
            yield waiting.popleft(), columns

    def _by_processes(self) -> Iterator[tuple[_Pending, Mapping[str, Any]]]:
        from uwaga.encode import processes
        from uwaga.encode.batches import Explained

        count = self._engine.processes or 1
        items = ((pending, batch_of(pending.documents)) for pending in self._pending())
        results = processes.map_batches(
            Explained(self._encode),
            items,
            processes=count,
            threads=max(1, _cores() // count),
            timeout=self._engine.timeout,
            describe=lambda pending: pending.places,
            say=_say,
        )
        for number, (pending, (choice, columns)) in enumerate(results):
            if number == 0:
                self._say_engine(choice)
            yield pending, columns

    def _by_ray(self) -> Iterator[tuple[_Pending, Mapping[str, Any]]]:
        from uwaga.encode import ray_data

        pending = [each._replace(documents=[]) for each in self._pending()]
        if not pending:
            return
        address = None if self._engine.ray == HERE else self._engine.ray
        wanted = [(each.first, each.shard) for each in pending]
        results = ray_data.map_groups(
            self._encode,
            partial(read_groups, self._corpus, wanted),
            [each.shard.documents for each in pending],
            address=address,
            actors=self._engine.processes,
            timeout=self._engine.timeout,
            say_engine=self._say_engine,
            quiet=True,
        )
        for number, columns in results:
            yield pending[number], columns

    def _say_engine(self, choice: "Choice") -> None:
        say_engine("encode", self._encode.model, choice)

    def _pending(self) -> Iterator[_Pending]:
        """The groups that are not finished, in order."""
        first, position = 0, 0.0
        for group in groups(self._corpus):
            after = self._corpus.fraction(first + len(group.documents), group.documents[-1].position)
            pending = _Pending(
                self._vectors.expect(group.shard), group.shard, first, after - position, group.places, group.documents
            )
            first, position = first + len(group.documents), after
            skipped = self._vectors.stored(group.shard)
            if skipped is None or (skipped and self._retry):
                yield pending
                continue
            entries = [Skipped(group.documents[number].place, reason) for number, reason in skipped]
            self._earlier += pending.width
            self._finish_group(pending, entries)

    def _finish_group(self, pending: _Pending, skipped: Sequence[Skipped]) -> None:
        if skipped:
            self._vectors.leave_out(pending.place, skipped)
        self._documents += pending.shard.documents
        self._done += pending.width
        self._show()

    def _take(self, pending: _Pending, columns: Mapping[str, Any]) -> None:
        """Write the shard of a group. Raises InvalidDocumentError, OSError."""
        errors, numbers = columns["error"], columns["document"]
        left_out = []
        for row in [row for row, error in enumerate(errors) if error is not None]:
            reason = columns["reason"][row] or in_option_names(errors[row], [*self._encode.options, "dtype"])
            if not self._skip:
                raise InvalidDocumentError(f"{columns['place'][row]}: {reason}")
            left_out.append((int(numbers[row]), Skipped(columns["place"][row], reason)))
        is_good = errors == None  # noqa: E711  # of each row
        kept = {"document": numbers[is_good]}
        if any(id is not None for id in columns["id"]):
            kept["id"] = columns["id"][is_good]
        kept |= {name: columns[name][is_good] for name in ("start", "stop", "characters", "tokens", "windows")}
        reasons = [(number, entry.reason) for number, entry in left_out]
        self._vectors.add(pending.shard, kept, columns["vector"][is_good], reasons)
        self._tokens += int(kept["tokens"].sum())
        self._finish_group(pending, [entry for _, entry in left_out])


def _say(message: str) -> None:
    echo(f"uwaga encode: {message}", err=True)


def _cores() -> int:
    """That this process may use, or OMP_NUM_THREADS where it is set."""
    import torch

    return torch.get_num_threads()


def _finish(vectors: VectorFile) -> str:
    """Write the file of all shards; its counts, for a message. Raises OSError, VectorsError."""
    from uwaga.encode.report import COLUMNS, Report, Summary

    total = Summary()
    for table in vectors.finish():
        columns = {name: table[name].to_numpy() for name in COLUMNS}
        total = total.plus(Report.of_columns(columns).summary)
    skipped = sum(shard.documents for shard in vectors.order) - total.documents
    return f"{total}; skipped: {skipped:,}, listed in {vectors.skipped_path}" if skipped else str(total)
