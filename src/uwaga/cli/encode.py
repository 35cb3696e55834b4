"""`uwaga encode`: a file of documents to a parquet file of vectors, by a model; can be stopped and goes on."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from uwaga._base.errors import CheckpointError
from uwaga.cli import encoding
from uwaga.cli.corpus import Corpus, CorpusError
from uwaga.cli.terminal import echo, fail
from uwaga.cli.vectors import Vectors, VectorsError

Overflow = Literal["error", "truncate", "mean", "windows"]
Storage = Literal["float32", "bfloat16"]


def encode(
    documents: Annotated[Path, typer.Argument(help="A file .jsonl, .txt (a document in each line) or .parquet.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The parquet file to write.")],
    model: Annotated[str, typer.Option(help="A model's directory, or its id on the hub.")],
    overflow: Annotated[Overflow, typer.Option(help="What to do with documents longer than the model.")] = "error",
    overlap: Annotated[int, typer.Option(help="Tokens that neighbouring windows share.")] = 0,
    dtype: Annotated[Storage, typer.Option(help="Of weights and arithmetic; vectors are float32.")] = "float32",
    tokens_per_batch: Annotated[int, typer.Option(help="Tokens that the model reads in one step.")] = 2048,
    normalize: Annotated[bool | None, typer.Option(help="Vectors of length 1; else as the model says.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Put before every document; else the model's default.")] = None,
    text: Annotated[str | None, typer.Option(help="The field of the text; else text.")] = None,
    id: Annotated[str | None, typer.Option(help="The field of a name; else id, where the documents have it.")] = None,
) -> None:
    """Encode documents to vectors. Stopped at any moment, the same command goes on where it was."""
    how = {
        "overflow": overflow,
        "overlap": overlap,
        "tokens_per_batch": tokens_per_batch,
        "normalize": normalize,
        "prompt": prompt,
    }
    _need_pyarrow()
    try:
        said = _encode(Corpus(documents, text=text, id=id), output, model, dtype, how, {"text": text, "id": id})
    except (CorpusError, VectorsError, CheckpointError) as error:
        fail("encode", str(error))
    except OSError as error:
        where, why = error.filename or output, error.strerror or str(error)
        fail("encode", f"{where}: {why}. What is finished is kept; the same command goes on from there")
    except KeyboardInterrupt:
        echo("uwaga encode: stopped; the same command goes on from there", err=True)
        raise typer.Exit(130) from None
    echo(f"{output}: {said}")


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        fail("encode", "needs pyarrow: pip install 'uwaga[encode]'")


def _encode(corpus: Corpus, output: Path, model: str, dtype: str, how: dict[str, Any], fields: dict[str, Any]) -> str:
    """What to say at the end."""
    folder, fingerprint = _model(model)
    _need_place(output)
    vectors = Vectors(output, {"model": fingerprint, "dtype": dtype, **how, **fields})
    whole = vectors.whole()
    if whole is not None:
        if not encoding.is_of(corpus, whole):
            raise VectorsError(
                f"{output} is there already, and was made of other documents than those of {corpus.path}"
            )
        vectors.clear()
        return "finished already"
    vectors.begin()
    try:
        encoding.Encoding(corpus, vectors, folder, dtype, how).run()
        if not vectors.finished:
            raise CorpusError(f"{corpus.path}: there are no documents")
        return str(encoding.finish(vectors))
    finally:
        vectors.leave()


def _model(model: str) -> tuple[Path, str]:
    """The model's directory and its fingerprint, before anything is loaded."""
    from uwaga.models import directories
    from uwaga.models.text.fingerprint import fingerprint

    folder = directories.find(model, None)
    return folder, fingerprint(folder, directories.transformer(folder))


def _need_place(output: Path) -> None:
    if output.suffix != ".parquet":
        raise VectorsError(f"{output}: the name must end in .parquet")
    if not output.parent.is_dir():
        raise VectorsError(f"{output}: there is no folder {output.parent}")
