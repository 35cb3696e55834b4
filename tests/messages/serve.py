"""Requests that the server refuses: the status, and the body of the response in the form of the interface."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from served import Client
from typer.testing import CliRunner

from uwaga import Reranker, TextEncoder
from uwaga._base.connections import PortError, listen
from uwaga.cli import app
from uwaga.serve.app import Service, digest_of, read_keys
from uwaga.serve.models import EmbeddingModel
from uwaga.serve.requests import Limits

KEY = "key-of-somebody"
LONG = "the cat sat on the mat and then it ran away"
RANKS = {"query": "a", "documents": ["a"]}


class ResponseError(Exception):
    """A response with another status than 200."""


def ask(
    encoder: TextEncoder,
    body: object = b"",
    path: str = "/v1/embeddings",
    *,
    method: str = "POST",
    type: str = "application/json",
    header: str = "",
    parts: Sequence[bytes] | None = None,
    reranker: Reranker | None = None,
    **options: object,
) -> None:
    """Send a request to a server. options: fields of Limits, or of Service."""
    limits = {field.name: options.pop(field.name) for field in fields(Limits) if field.name in options}
    service = Service(EmbeddingModel(encoder, reranker), name="tiny", limits=Limits(**limits), **options)
    client = Client(service)
    headers = {"Content_Type": type, "Authorization": header}
    try:
        if parts is not None or method == "GET":
            answer = asyncio.run(client.send(method, path, parts or [], headers))
        else:
            answer = asyncio.run(client.post(path, body, **headers))
    finally:
        service.close()
    if answer.status != 200:
        raise ResponseError(f"{answer.status} {answer.body.decode()}")


def rank(encoder: TextEncoder, path: str = "/v1/rerank", reranker: Reranker | None = None, **body: object) -> None:
    ask(encoder, {"query": "a", "documents": ["a"]} | body, path, reranker=reranker)


def fail(items: Sequence[str], kind: object) -> np.ndarray:
    raise RuntimeError("a secret")


def keys(folder: Path, text: str) -> None:
    (folder / "keys").write_text(text)
    read_keys(folder / "keys")


def listen_twice() -> None:
    with listen("127.0.0.1", 0) as taken:
        try:
            listen("127.0.0.1", taken.getsockname()[1])
        except PortError as error:
            raise PortError(str(error).replace(str(taken.getsockname()[1]), "PORT")) from None


def command(*arguments: object) -> None:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    raise ResponseError(f"{result.exit_code}: {result.stderr.strip()}")
