"""`uwaga encode`: a file of documents to a parquet file of vectors, by this process, by several of this machine or by a Ray cluster. An
interrupted run is resumed by the same command."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.terminal import escape_controls
from uwaga.cli.terminal import Dtype, TextField, echo, ending, fail, in_option_names, say_engine
from uwaga.data.documents import DocumentFile, InvalidDocumentError
from uwaga.data.passages import Split
from uwaga.encode.processes import TIMEOUT, WorkerError
from uwaga.encode.shards import encode_file
from uwaga.encode.vector_files import VectorsError, check_numpy, write_numpy
from uwaga.models.checkpoints.directories import DEFAULT_ENCODER

Overflow = Literal["error", "truncate", "mean", "windows"]
HERE = "here"  # --ray without an address


def encode(
    documents: Annotated[
        Path, typer.Argument(help="A file .jsonl, .csv, .txt (a document in each line that is not blank) or .parquet.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The parquet file to write.")],
    model: Annotated[str, typer.Option(help="minilm, a model's directory, or its id on the hub.")] = DEFAULT_ENCODER,
    overflow: Annotated[Overflow, typer.Option(help="What to do with documents longer than the model.")] = "error",
    overlap: Annotated[int, typer.Option(help="Tokens that neighbouring windows share.")] = 0,
    dtype: Dtype = "float32",
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
    text: TextField = None,
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
            help="Seconds for a shard of documents, after which its process is replaced; with --ray, without a result, after which the command ends.",
        ),
    ] = TIMEOUT,
) -> None:
    """Encode documents to vectors. If it is interrupted, the same command resumes it."""
    options: dict[str, Any] = {
        "overflow": overflow,
        "overlap": overlap,
        "tokens_per_batch": tokens_per_batch,
        "normalize": normalize,
        "prompt": prompt,
        **_given(prompt_name=prompt_name, truncate_dim=truncate_dim, spans=spans),
    }
    read = {**_given(skip_invalid=skip_invalid or None), "text": text, "id": id, **_given(limit=limit)}
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        fail("encode", f"needs pyarrow: {error}; pip install 'uwaga[encode]'")
    from uwaga.encode.batches import BatchEncoder

    with ending("encode", DataError, VectorsError, CheckpointError, stopped="interrupted; the same command resumes"):
        try:
            if numpy is not None:
                check_numpy(numpy)
            file = DocumentFile(
                documents, text_field=text, id_field=id, keep_invalid=skip_invalid, skip_blank=not skip_invalid
            )
            is_alone = ray is None and processes in (None, 1)
            encode = BatchEncoder(model, dtype=dtype, shared=not is_alone, **options)
            message = encode_file(
                file,
                output,
                encode,
                {"model": encode.fingerprint, "dtype": dtype, **options, **read},
                limit=limit,
                processes=processes,
                ray="" if ray == HERE else ray,
                timeout=timeout,
                skip_invalid=skip_invalid,
                update=update,
                say=lambda message: echo(f"uwaga encode: {message}", err=True),
                say_engine=lambda choice: say_engine("encode", encode.model, choice),
                phrase=lambda reason: in_option_names(reason, [*options, "dtype"]),
            )
            rows = None if numpy is None else write_numpy(output, numpy)
        except InvalidDocumentError as error:
            fail("encode", f"{error}\n--skip-invalid leaves out such documents and lists them")
        except WorkerError as error:
            fail("encode", f"{error}. Finished shards are kept; the same command resumes")
        except OSError as error:
            where, why = error.filename or output, error.strerror or str(error)
            fail("encode", f"{where}: {why}. Finished shards are kept; the same command resumes")
        except ValueError as error:  # options that do not go together, or not with the model
            if not str(error).startswith("TextEncoder: "):
                raise
            message = in_option_names(str(error).removeprefix("TextEncoder: "), options)
            raise typer.BadParameter(escape_controls(message)) from error
    echo(f"{output}: {message or 'finished already'}")
    if rows is not None:
        echo(f"{numpy}: {rows:,} vectors")


def _given(**options: object) -> dict[str, object]:
    """Only what is given: files of versions without these options are taken for finished as before."""
    return {name: value for name, value in options.items() if value is not None}
