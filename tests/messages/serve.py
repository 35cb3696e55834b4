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
from uwaga._base.errors import DataError
from uwaga.cli import app
from uwaga.serve.app import Service, digest_of
from uwaga.serve.models import EmbeddingModel
from uwaga.serve.requests import Limits
from uwaga.serve.server import listen, read_keys

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
    limits = {each.name: options.pop(each.name) for each in fields(Limits) if each.name in options}
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


def tei(encoder: TextEncoder, **body: object) -> None:
    ask(encoder, body, "/embed")


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
        except DataError as error:
            raise DataError(str(error).replace(str(taken.getsockname()[1]), "PORT")) from None


def command(*arguments: object) -> None:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    raise ResponseError(f"{result.exit_code}: {result.stderr.strip()}")


CALLS = {
    "body: empty": lambda encoder: ask(encoder, b""),
    "body: a list": lambda encoder: ask(encoder, b"[]"),
    "body: cut off": lambda encoder: ask(encoder, b'{"input": "a"'),
    "body: not UTF-8": lambda encoder: ask(encoder, b'{"input": "\xff"}'),
    "body: NaN": lambda encoder: ask(encoder, b'{"input": NaN}'),
    "body: an infinite number": lambda encoder: ask(encoder, b'{"input": "a", "dimensions": 1e999}'),
    "body: a key twice": lambda encoder: ask(encoder, b'{"input": "a", "input": "b"}'),
    "body: a lone surrogate": lambda encoder: ask(encoder, b'{"input": "\\ud800"}'),
    "body: a control character": lambda encoder: ask(encoder, b'{"input": "a\x00"}'),
    "body: nested too deeply": lambda encoder: ask(encoder, b'{"input": ' + 200 * b"[" + 200 * b"]" + b"}"),
    "body: too large": lambda encoder: ask(encoder, {"input": 200 * "a"}, body_bytes=200),
    "body: too large with others": lambda encoder: ask(encoder, {"input": 200 * "a"}, all_bodies_bytes=200),
    "body: not complete in time": lambda encoder: ask(encoder, parts=[], body_seconds=0.0),
    "input: missing": lambda encoder: ask(encoder, {}),
    "input: null": lambda encoder: ask(encoder, {"input": None}),
    "input: empty": lambda encoder: ask(encoder, {"input": ""}),
    "input: a blank text": lambda encoder: ask(encoder, {"input": ["a", " \n\0"]}),
    "input: an empty list": lambda encoder: ask(encoder, {"input": []}),
    "input: a number": lambda encoder: ask(encoder, {"input": 5}),
    "input: a text and a number": lambda encoder: ask(encoder, {"input": ["a", 5]}),
    "input: a bool": lambda encoder: ask(encoder, {"input": [True]}),
    "input: a fraction": lambda encoder: ask(encoder, {"input": [1.5]}),
    "input: a list of nothing": lambda encoder: ask(encoder, {"input": [[]]}),
    "input: too many texts": lambda encoder: ask(encoder, {"input": ["a"] * 4}, items=3),
    "input: too many tokens": lambda encoder: ask(encoder, {"input": ["the cat sat on a mat"] * 3}, tokens=20),
    "input: too many token ids": lambda encoder: ask(encoder, {"input": [5] * 22}, tokens=20),
    "input: too many token ids in lists": lambda encoder: ask(encoder, {"input": [[5] * 11, [5] * 10]}, tokens=20),
    "input: too long a text": lambda encoder: ask(encoder, {"input": ["a", LONG]}),
    "input: too many words": lambda encoder: ask(encoder, {"input": "a " * 100_000}),
    "input: too long a word": lambda encoder: ask(encoder, {"input": "." * 70_000}),
    "input: too long to be truncated": lambda encoder: ask(encoder, {"input": "." * 140_000, "truncate": True}, tokens=20),
    "input: too long a list of ids": lambda encoder: ask(encoder, {"input": [[5], [5] * 13]}),
    "input: too long a text of ids": lambda encoder: ask(encoder, b'{"truncate":true,"input":[%b5]}' % (b"%d," % encoder.tokenizer.backend.token_to_id("house") * 50), body_bytes=200),
    "input: an unknown id": lambda encoder: ask(encoder, {"input": [[5, 6], [10**9]]}),
    "input: special ids alone": lambda encoder: ask(encoder, {"input": [[5, 6], [2, 3]]}),
    "input: ids of no text": lambda encoder: ask(encoder, {"input": [[5, 6], [20, 5]]}),
    "encoding_format: another": lambda encoder: ask(encoder, {"input": "a", "encoding_format": "int8"}),
    "dimensions: too many": lambda encoder: ask(encoder, {"input": "a", "dimensions": 17}),
    "dimensions: a bool": lambda encoder: ask(encoder, {"input": "a", "dimensions": True}),
    "truncate: a word": lambda encoder: ask(encoder, {"input": "a", "truncate": "yes"}),
    "user: an object": lambda encoder: ask(encoder, {"input": "a", "user": {}}),
    "prompt_name: another": lambda encoder: ask(encoder, {"input": "a", "prompt_name": "passage"}),
    "model: another": lambda encoder: ask(encoder, {"input": "a", "model": "text-embedding-3-small"}),
    "a key: with an escape": lambda encoder: ask(encoder, {"input": "a", "tempe\x1brature": 1}),
    "a key: misspelt": lambda encoder: ask(encoder, {"input": "a", "trunkate": None}),
    "a key: of Cohere": lambda encoder: ask(encoder, {"input": "a", "input_type": "query"}),
    "embed: a key of OpenAI": lambda encoder: tei(encoder, input="a"),
    "embed: another key of OpenAI": lambda encoder: tei(encoder, inputs="a", encoding_format="float"),
    "embed: an empty list": lambda encoder: tei(encoder, inputs=[]),
    "embed: an empty text": lambda encoder: tei(encoder, inputs=["a", ""]),
    "embed: a number for normalize": lambda encoder: tei(encoder, inputs="a", normalize=1),
    "embed: too long a text": lambda encoder: tei(encoder, inputs=LONG),
    "embed: ids of no text": lambda encoder: tei(encoder, inputs=[[20, 5]]),
    "embed: truncated on the left": lambda encoder: tei(encoder, inputs=[LONG], truncate=True, truncation_direction="Left"),
    "embed: truncated on both sides": lambda encoder: tei(encoder, inputs=[LONG], truncate=True, truncation_direction="Both"),
    "embed: a full queue": lambda encoder: ask(encoder, {"inputs": ["a", "b"]}, "/embed", queue_items=1),
    "rerank: no query": lambda encoder: ask(encoder, {"documents": ["a"]}, "/v1/rerank"),
    "rerank: no documents": lambda encoder: ask(encoder, {"query": "a"}, "/v2/rerank"),
    "rerank: an empty list": lambda encoder: rank(encoder, documents=[]),
    "rerank: a number": lambda encoder: rank(encoder, documents=["a", 5]),
    "rerank: an object without a text": lambda encoder: rank(encoder, documents=[{"title": "a"}]),
    "rerank: a blank query": lambda encoder: rank(encoder, query=" "),
    "rerank: an empty document": lambda encoder: rank(encoder, documents=["a", ""]),
    "rerank: top_n of 0": lambda encoder: rank(encoder, top_n=0),
    "rerank: rank_fields": lambda encoder: rank(encoder, rank_fields=["title"]),
    "rerank: max_tokens_per_doc of 0": lambda encoder: rank(encoder, max_tokens_per_doc=0),
    "rerank: too long a document": lambda encoder: rank(encoder, documents=[LONG]),
    "rerank: a full queue": lambda encoder: ask(encoder, RANKS, "/v1/rerank", queue_requests=1),
    "rerank of TEI: no query": lambda encoder: ask(encoder, {"texts": ["a"]}, "/rerank"),
    "rerank of TEI: no texts": lambda encoder: ask(encoder, {"query": "a"}, "/rerank"),
    "rerank of TEI: a key of Cohere": lambda encoder: rank(encoder, "/rerank", rank_fields=["title"]),
    "rerank of TEI: a number": lambda encoder: ask(encoder, {"query": "a", "texts": ["a", 5]}, "/rerank"),
    "rerank of TEI: too long a document": lambda encoder: rank(encoder, "/rerank", documents=[LONG]),
    "cross-encoder: an empty document": lambda encoder, reranker: rank(encoder, reranker=reranker, documents=["a", " "]),
    "cross-encoder: a blank query": lambda encoder, reranker: rank(encoder, reranker=reranker, query=" "),
    "cross-encoder: too long a document": lambda encoder, reranker: rank(encoder, reranker=reranker, documents=["a", LONG * 9]),
    "cross-encoder: too long a query": lambda encoder, reranker: rank(encoder, reranker=reranker, query=LONG * 9),
    "key: none": lambda encoder: ask(encoder, {"input": "a"}, keys=frozenset([digest_of(KEY)])),
    "key: wrong": lambda encoder: ask(encoder, {"input": "a"}, keys=frozenset([digest_of(KEY)]), header="Bearer wrong"),
    "key: of another scheme": lambda encoder: ask(encoder, path="/metrics", method="GET", keys=frozenset([digest_of(KEY)]), header=f"Basic {KEY}"),
    "request: by GET": lambda encoder: ask(encoder, method="GET"),
    "request: by POST": lambda encoder: ask(encoder, {}, "/health"),
    "request: another path": lambda encoder: ask(encoder, {}, "/v1/chat/completions"),
    "request: another type": lambda encoder: ask(encoder, {"input": "a"}, type="text/plain"),
    "request: long headers": lambda encoder: ask(encoder, path="/health", method="GET", header="a" * 2**15),
    "request: no answer in time": lambda encoder: ask(encoder, {"input": "a"}, seconds=0.0),
    "request: the model fails": lambda encoder: ask(encoder, {"input": "a"}, run=fail),
    "keys of a file: none": lambda folder: keys(folder, "# none\n"),
    "keys of a file: too short": lambda folder: keys(folder, "key-of-the-crawler\nshort\n"),
    "keys of a file: spaces": lambda folder: keys(folder, "key of the crawler\n"),
    "listen: a port that is taken": listen_twice,
    "command: a queue shorter than a request": lambda model: command(model, "--max-queue", 10),
    "command: no file of keys": lambda model, folder: command(model, "--keys", folder / "missing"),
    "command: a name that no client can send": lambda model, folder: command(shutil.copytree(model, folder / "a\x7fb"), "--port", 0),
}  # fmt: skip
