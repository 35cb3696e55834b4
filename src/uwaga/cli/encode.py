"""`uwaga encode`: a file of documents to a parquet file of vectors, by this process, by several of this machine or by a Ray cluster. An
interrupted run is resumed by the same command."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.install import missing
from uwaga._base.terminal import escape_controls
from uwaga.cli.terminal import Dtype, TextField, echo, ending, fail, in_option_names, say_engine
from uwaga.data.documents import DocumentFile, InvalidDocumentError
from uwaga.data.passages import Split
from uwaga.encode.processes import TIMEOUT, WorkerError
from uwaga.encode.shards import encode_file
from uwaga.encode.vector_files import VectorsError
from uwaga.models.checkpoints.directories import DEFAULT_ENCODER

Overflow = Literal["error", "truncate", "mean", "windows"]
HERE = "here"  # --ray without an address


def encode(
    documents: Annotated[
        Path, typer.Argument(help="Documents: a file .jsonl, .csv, .txt (one document in each line) or .parquet.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Parquet file to write.")],
    model: Annotated[str, typer.Option(help="Model: minilm, a directory, or an id of the Hub.")] = DEFAULT_ENCODER,
    overflow: Annotated[
        Overflow, typer.Option(help="Treatment of documents that are longer than the model reads.")
    ] = "error",
    overlap: Annotated[int, typer.Option(help="Tokens that neighbouring windows share.")] = 0,
    dtype: Dtype = "float32",
    tokens_per_batch: Annotated[int, typer.Option(help="Tokens that the model reads in one forward pass.")] = 2048,
    normalize: Annotated[
        bool | None, typer.Option(help="Scale vectors to length 1.", show_default="as the model's files say")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Text to put before every document.", show_default="the model's prompt")
    ] = None,
    prompt_name: Annotated[str | None, typer.Option(help="Name of a prompt of the model, such as document.")] = None,
    truncate_dim: Annotated[
        int | None, typer.Option(min=1, help="Keep the first N dimensions of each vector (for Matryoshka models).")
    ] = None,
    spans: Annotated[
        Split | None,
        typer.Option(help="Read each document as a whole, and write a vector for each of these parts (late chunking)."),
    ] = None,
    text: TextField = None,
    id: Annotated[
        str | None, typer.Option(help="Field that holds the document id.", show_default="id, if present")
    ] = None,
    skip_invalid: Annotated[
        bool,
        typer.Option("--skip-invalid", help="Leave out documents that cannot be encoded, and list them in a file."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Encode only the first N documents.")] = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="Encode new and previously skipped documents; reuse all other vectors of the output file."
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Number of worker processes. They share the cores, and weights that are stored in --dtype.",
            show_default="1; with --ray, one per CPU",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Encode on a Ray cluster at ADDRESS, or at 'auto' for the running one. Without ADDRESS, start Ray on this machine.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=1.0, help="Seconds until a process without a result is replaced. With --ray, the command ends instead."
        ),
    ] = TIMEOUT,
) -> None:
    """Encode documents to vectors. If the command is interrupted, run it again to continue."""
    options: dict[str, Any] = {
        "overflow": overflow,
        "overlap": overlap,
        "tokens_per_batch": tokens_per_batch,
        "normalize": normalize,
        "prompt": prompt,
        **_without_none(prompt_name=prompt_name, truncate_dim=truncate_dim, spans=spans),
    }
    read = {**_without_none(skip_invalid=skip_invalid or None), "text": text, "id": id, **_without_none(limit=limit)}
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        fail("encode", missing(error, "encode"))
    except ImportError as error:  # such as a shared library that cannot be loaded
        fail("encode", f"pyarrow cannot be imported: {error}; reinstall it: pip install --force-reinstall pyarrow")
    from uwaga.encode.batches import BatchEncoder

    with ending("encode", DataError, VectorsError, CheckpointError, stopped="interrupted; the same command resumes"):
        try:
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


def _without_none(**options: object) -> dict[str, object]:
    """Return the options that have a value. So files of versions without these options count as finished, as before."""
    return {name: value for name, value in options.items() if value is not None}
