"""Commands that end with an error: their exit status, and what they write to stderr."""

import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from uwaga import Recording, SoftDatabase
from uwaga.cli import app
from uwaga.inspect.recordings.recording import AttentionId
from uwaga.models.checkpoints import directories


class ExitError(Exception):
    """A command ended with another status than 0."""


def run(*arguments: object, input: bytes | None = None) -> None:
    result = CliRunner().invoke(app, [*map(str, arguments)], input=input, env={"COLUMNS": "400"})
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    if result.exit_code:
        told = result.stderr
        boxed = [line.strip("\u2502 ") for line in told.splitlines() if line.startswith("\u2502")]  # wrong usage
        told = " ".join(boxed) or told[max(told.find(f"uwaga {arguments[0]}"), 0) :]  # after a bar of progress
        raise ExitError(f"{result.exit_code}: {told.strip()}")


def recording(folder: Path) -> Path:
    made, where, x = Recording(), AttentionId("encoder", 0), torch.ones(1, 2, 3, 4)
    options = dict.fromkeys(("mask", "bias", "scale", "softcap", "sinks"))
    made.record(where, x, x, options, None)
    made.store(where, x, x, options, None)
    made.save(folder / "a.safetensors")
    return folder / "a.safetensors"


def view(model: Path, *arguments: object, **given: bytes) -> None:
    run("view", *arguments, "--model", model, **given)


def of_picture(patch: pytest.MonkeyPatch, folder: Path, *arguments: object) -> None:
    """Show photo.png of the current folder, which also has a text as text.png."""
    patch.chdir(folder)
    Image.new("RGB", (2, 2)).save("photo.png")
    Path("text.png").write_text("a text")
    run("view", *arguments)


def encode(
    folder: Path, model: Path, *options: object, text: str = '{"text": "a"}', output: str = "out.parquet"
) -> None:
    (folder / "docs.jsonl").write_text(text)
    run("encode", folder / "docs.jsonl", "-o", folder / output, "--model", model, *options)


def encode_table(folder: Path, model: Path, table: pa.Table) -> None:
    parquet.write_table(table, folder / "docs.parquet")
    run("encode", folder / "docs.parquet", "-o", folder / "out.parquet", "--model", model)


def encode_without(patch: pytest.MonkeyPatch, folder: Path, model: Path, package: str, *options: object) -> None:
    patch.setitem(sys.modules, package, None)
    encode(folder, model, *options)


def encode_over(folder: Path, model: Path, metadata: bytes) -> None:
    """Where the output is a table of something else."""
    parquet.write_table(pa.table({"a": [1]}).replace_schema_metadata({"uwaga": metadata}), folder / "out.parquet")
    encode(folder, model)


def encode_beside(folder: Path, model: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")
    encode(folder, model, "--skip-invalid")


def add(folder: Path, model: Path, content: bytes, name: str = "a.jsonl") -> None:
    (folder / name).write_bytes(content)
    run("store", "add", folder / "db", folder / name, "--model", model)


def linked(path: Path, to: str) -> Path:
    path.symlink_to(to)
    return path


def filled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def piped(path: Path) -> Path:
    os.mkfifo(path)
    return path


def empty_database(folder: Path) -> Path:
    SoftDatabase.create(folder / "empty", key_width=16).close()
    return folder / "empty"


def database_of(folder: Path, model: Path) -> Path:
    (folder / "a.txt").write_text("the cat")
    run("store", "add", folder / "db", folder / "a.txt", "--model", model)
    return folder / "db"


def without_minilm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(directories, "find_spec", lambda name: None)
    run("view", "cat", "--model", "minilm")


def distributed(patch: pytest.MonkeyPatch) -> None:
    patch.delenv("RANK", raising=False)
    run("doctor", "--distributed")


def without_uvicorn(patch: pytest.MonkeyPatch, model: Path) -> None:
    patch.setitem(sys.modules, "uvicorn", None)
    for name in ("uwaga.viewer.server.server", "uwaga._base.connections"):
        patch.setitem(sys.modules, name, None)
        patch.delitem(sys.modules, name)
    view(model, "cat")


def on_taken_port(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        try:
            view(model, "cat", "--port", port)
        except ExitError as error:
            raise ExitError(str(error).replace(port, "PORT")) from None


def of_other_weights(patch: pytest.MonkeyPatch, folder: Path, model: Path) -> None:
    """Where a package has other weights than those that were published."""
    (folder / "model").symlink_to(model)
    patch.setattr(directories, "find_spec", lambda name: SimpleNamespace(origin=str(folder / "__init__.py")))
    run("view", "cat")


def unnamed(folder: Path, name: bytes) -> Path:
    """A path that is not UTF-8."""
    return Path(os.fsdecode(os.fsencode(folder) + name))


LONG = "the cat sat on the mat and then it ran away from the house"

CALLS = {
    "view: empty text": lambda model: view(model, ""),
    "view: spaces": lambda model: view(model, "  \n "),
    "view: no such file in a folder": lambda model: view(model, "no/such/file"),
    "view: no such file": lambda model: view(model, "novel.txt"),
    "view: a folder": lambda model: view(model, "."),
    "view: a text that is not UTF-8": lambda model: view(model, "a\udcff"),
    "view: stdin that is not UTF-8": lambda model: view(model, "-", input=b"\xff"),
    "view: a file that is not UTF-8": lambda folder, model: view(model, filled(folder / "text", b"\xff")),
    "view: text too long": lambda model: view(model, "the cat sat on the mat and then it ran away"),
    "view: text far too long": lambda model: view(model, "cat " * 5000),
    "view: a file in place of a model": lambda folder: view(filled(folder / "file", b""), "cat"),
    "view: no such model": lambda folder: view(folder / "none", "cat"),
    "view: minilm that is not installed": without_minilm,
    "view: layers that fall": lambda model: view(model, "cat", "--layers", "3-1"),
    "view: layers by name": lambda model: view(model, "cat", "--layers", "x"),
    "view: no such layer": lambda model: view(model, "cat", "--layers", "9"),
    "view: --exact without --save": lambda model: view(model, "cat", "--exact", "encoder/0/0"),
    "view: --exact without a head": lambda folder, model: view(model, "cat", "--save", folder / "page.html", "--exact", "encoder/0"),
    "view: --exact of no head": lambda folder, model: view(model, "cat", "--save", folder / "page.html", "--exact", "encoder/7/0"),
    "view: --pick without --head": lambda model: view(model, "cat", "--pick", "cat"),
    "view: --pick of no word": lambda folder, model: view(model, "cat", "--save", folder / "page.html", "--head", "0.0", "--pick", "dog"),
    "view: --head with a comma": lambda model: view(model, "cat", "--head", "3,1"),
    "view: --head of no layer": lambda folder, model: view(model, "cat", "--save", folder / "page.html", "--head", "7.0"),
    "view: --seconds without --save": lambda model: view(model, "cat", "--seconds", "5"),
    "view: --save in no folder": lambda model: view(model, "cat", "--save", "no/such/page.html"),
    "view: --target of an encoder": lambda model: view(model, "cat", "--target", "dog"),
    "view: --layers of a recording": lambda folder: run("view", recording(folder), "--layers", "0"),
    "view: --target of a recording": lambda folder: run("view", recording(folder), "--target", "x"),
    "view: --second-model of a recording": lambda folder, model: run("view", recording(folder), "--second-model", model),
    "view: weights": lambda model: run("view", model / "model.safetensors"),
    "view: --ask without a database": lambda: run("view", "--ask", "the cat"),
    "view: --ask of no folder": lambda folder: run("view", folder / "none", "--ask", "the cat"),
    "view: --ask of an empty database": lambda folder: run("view", empty_database(folder), "--ask", "the cat"),
    "view: --ask and a second text": lambda folder: run("view", empty_database(folder), "--ask", "the cat", "--second", "a dog"),
    "view: --ask of tokens": lambda tokens: run("view", tokens.path, "--ask", "the cat"),
    "view: a picture without a model": lambda patch, folder: of_picture(patch, folder, "photo.png"),
    "view: no such picture": lambda patch, folder, model: of_picture(patch, folder, "missing.webp", "--model", model),
    "view: a picture and a second text": lambda patch, folder, model: of_picture(patch, folder, "photo.png", "--model", model, "--second", "a text"),
    "view: a text and a picture": lambda patch, folder, model: of_picture(patch, folder, "a text", "--model", model, "--second", "photo.png"),
    "view: a picture and a second model": lambda patch, folder, model: of_picture(patch, folder, "photo.png", "--model", model, "--second-model", model),
    "view: a picture and a target": lambda patch, folder, model: of_picture(patch, folder, "photo.png", "--model", model, "--target", "a text"),
    "view: a picture and --truncate": lambda patch, folder, model: of_picture(patch, folder, "photo.png", "--model", model, "--truncate"),
    "view: --resolution of a text": lambda patch, folder: of_picture(patch, folder, "a text", "--resolution", "64"),
    "view: a text in place of a picture": lambda patch, folder, model: of_picture(patch, folder, "text.png", "--model", model),
    "view: a picture and a model of texts": lambda patch, folder, model: of_picture(patch, folder, "photo.png", "--model", model),
    "view: a port that is taken": on_taken_port,
    "view: without uvicorn": without_uvicorn,
    "view: bundled weights that are others": of_other_weights,
    "generate: --max-new-tokens of 0": lambda: run("generate", "Once", "--max-new-tokens", "0"),
    "generate: --temperature without --do-sample": lambda: run("generate", "Once", "--temperature", "0.5"),
    "generate: --top-p of 2": lambda: run("generate", "Once", "--do-sample", "--top-p", "2"),
    "generate: --top-k of 0": lambda: run("generate", "Once", "--do-sample", "--top-k", "0"),
    "generate: --length-penalty without beams": lambda: run("generate", "Once", "--length-penalty", "2"),
    "generate: --do-sample and beams": lambda: run("generate", "Once", "--do-sample", "--num-beams", "2"),
    "generate: empty prompt": lambda: run("generate", "--model", "bard", ""),
    "generate: a prompt that is not UTF-8": lambda: run("generate", "--model", "bard", "a", "\udcff"),
    "generate: stdin that is not UTF-8": lambda: run("generate", "--model", "bard", "-", input=b"\xff"),
    "generate: an encoder": lambda model: run("generate", "--model", model, "the cat"),
    "encode: a line that is empty": lambda folder, model: encode(folder, model, text="\n"),
    "encode: a line with null": lambda folder, model: encode(folder, model, text="null"),
    "encode: a document without a text": lambda folder, model: encode(folder, model, text='{"id": "x"}'),
    "encode: a document with null": lambda folder, model: encode(folder, model, text='{"text": null}'),
    "encode: an empty document": lambda folder, model: encode(folder, model, text='{"text": ""}'),
    "encode: a document without tokens": lambda folder, model: encode(folder, model, text='{"text": "\\u0007"}'),
    "encode: a document too long": lambda folder, model: encode(folder, model, text=json.dumps({"text": LONG})),
    "encode: a lone surrogate": lambda folder, model: encode(folder, model, text='{"text": "\\udcff"}'),
    "encode: an id that is null": lambda folder, model: encode(folder, model, text='{"id": null, "text": "a"}'),
    "encode: nothing but invalid documents": lambda folder, model: encode(folder, model, "--skip-invalid", text='{"text": ""}'),
    "encode: an output of another kind": lambda folder, model: encode(folder, model, output="out.csv"),
    "encode: an output in no folder": lambda folder, model: encode(folder, model, output="nowhere/out.parquet"),
    "encode: over metadata that is a list": lambda folder, model: encode_over(folder, model, b"[]"),
    "encode: over a folder of somebody": lambda folder, model: encode_beside(folder, model, "out.parquet.parts/notes.txt"),
    "encode: over a list of somebody": lambda folder, model: encode_beside(folder, model, "out.parquet.skipped.jsonl"),
    "encode: two columns of one name": lambda folder, model: encode_table(folder, model, pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text"] * 2)),
    "encode: --overlap without --overflow": lambda folder, model: encode(folder, model, "--overlap", "3"),
    "encode: --spans and --overflow mean": lambda folder, model: encode(folder, model, "--spans", "line", "--overflow", "mean"),
    "encode: without pyarrow": lambda patch, folder, model: encode_without(patch, folder, model, "pyarrow"),
    "encode: without Ray": lambda patch, folder, model: encode_without(patch, folder, model, "ray", "--ray"),
    "encode: without Ray at an address": lambda patch, folder, model: encode_without(patch, folder, model, "ray", "--ray", "auto"),
    "encode: a folder without a model": lambda folder: encode(folder, folder),
    "store add: a document without a text": lambda folder, model: add(folder, model, b'{"other": 1}'),
    "store add: a document without tokens": lambda folder, model: add(folder, model, b'{"text": "\\u0007"}'),
    "store add: an empty file": lambda folder, model: add(folder, model, b"", "a.txt"),
    "store add: a file that is not UTF-8": lambda folder, model: add(folder, model, b"\xff", "a.txt"),
    "store add: a pipe": lambda folder, model: run("store", "add", folder / "db", piped(folder / "b.txt"), "--model", model),
    "store add: a device": lambda folder, model: run("store", "add", folder / "db", linked(folder / "b.txt", "/dev/zero"), "--model", model),
    "store add: a link to nowhere": lambda folder, model: run("store", "add", folder / "db", linked(folder / "b.txt", "nowhere"), "--model", model),
    "store add: a link to itself": lambda folder, model: run("store", "add", folder / "db", linked(folder / "b.txt", "b.txt"), "--model", model),
    "store add: a name that is not UTF-8": lambda folder, model: run("store", "add", folder / "db", filled(unnamed(folder, b"/b\xff.txt"), b"a"), "--model", model),
    "store add: a database whose name is not UTF-8": lambda folder, model: run("store", "add", unnamed(folder, b"/db\xff"), filled(folder / "a.txt", b"a"), "--model", model),
    "store stats: a database whose name is not UTF-8": lambda folder: run("store", "stats", unnamed(folder, b"/db\xff")),
    "store add: no such file": lambda folder, model: run("store", "add", folder / "db", folder / "none.txt", "--model", model),
    "store add: an empty folder": lambda folder, model: run("store", "add", folder / "db", folder, "--model", model),
    "store ask: a condition with an unknown field": lambda folder, model: run("store", "ask", database_of(folder, model), "the cat", "--model", model, "--where", "nothing = 1"),
    "store stats: no folder": lambda folder: run("store", "stats", folder / "nowhere"),
    "doctor: --distributed alone": distributed,
    "lesson: unknown language": lambda: run("lesson", "--plain", "--language", "de"),
    "lesson: --query past the end": lambda: run("lesson", "my pen .", "--plain", "--query", "9"),
    "lesson: no words": lambda: run("lesson", "--plain", " "),
    "lesson: too many words": lambda: run("lesson", "--plain", "a " * 13),
    "lesson: too many heads": lambda: run("lesson", "--plain", "--heads", "5"),
    "lesson: a lone surrogate": lambda: run("lesson", "--plain", "\udcff"),
    "lesson: --worksheet in no folder": lambda folder: run("lesson", "--worksheet", folder / "none" / "sheet.html"),
    "lesson: --save in no folder": lambda folder: run("lesson", "--save", folder / "none" / "lesson.html"),
}  # fmt: skip
