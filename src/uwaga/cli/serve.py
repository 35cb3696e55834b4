"""`uwaga serve`: vectors and ranks of texts over HTTP."""

import os
import stat
import sys
from pathlib import Path
from typing import Annotated

import typer

from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.install import missing
from uwaga._base.terminal import printable
from uwaga.cli.terminal import Dtype, echo, ending, fail, say_engine

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MEGABYTE = 1 << 20


def serve(
    model: Annotated[str, typer.Argument(help="Model: minilm, a directory, or an id of the Hub.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port; 0: any free one.", min=0, max=65535)] = 8000,
    name: Annotated[
        str | None, typer.Option(help="Model name that clients must send.", show_default="name of the directory")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File with one API key in each line; clients must send one of these keys.")
    ] = None,
    reranker: Annotated[
        str | None,
        typer.Option(
            help="Cross-encoder for /v1/rerank: a directory or an id of the Hub.",
            show_default="rank by the similarity of vectors",
        ),
    ] = None,
    dtype: Dtype = "float32",
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Cut texts that are longer than the model reads instead of rejecting them."),
    ] = False,
    step_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the model reads in one forward pass.")] = 2048,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per request.")] = 1 << 18,
    max_body: Annotated[int, typer.Option(min=1, help="Maximum request size in MB (2^20 bytes).")] = 4,
    timeout: Annotated[float, typer.Option(min=0.001, help="Maximum seconds per request.")] = 60.0,
    access_log: Annotated[
        bool,
        typer.Option("--access-log", help="Print a line for each request: time, client, method, path, status."),
    ] = False,
    ignore_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="Accept and ignore this key in requests; can be repeated.", show_default=False
        ),
    ] = None,
) -> None:
    """Serve a model's vectors through the interfaces of OpenAI, Cohere and Jina. SIGTERM or Ctrl-C ends the server."""
    shown = name or (Path(model).resolve().name if Path(model).exists() else model)
    if not shown.isprintable():
        fail("serve", f"the model's name {printable(shown)} has characters that no client can send; give one by --name")
    try:
        from uwaga._base.connections import listen
        from uwaga.serve.app import Service, read_keys, run
        from uwaga.serve.requests import UNREAD_KEYS, Limits
    except ModuleNotFoundError as error:
        fail("serve", missing(error, "serve"))
    limits = Limits(
        body_bytes=max_body * _MEGABYTE,
        tokens=max_tokens,
        seconds=timeout,
        unread_keys=(*UNREAD_KEYS, *(ignore_key or ())),
    )
    with ending("serve", CheckpointError, DataError, ValueError, OSError):
        digests = None if keys is None else read_keys(keys)
        _warn(host, keys)
        import torch

        from uwaga import Reranker, TextEncoder
        from uwaga.serve.models import EmbeddingModel

        encoder = TextEncoder.load(model, dtype=getattr(torch, dtype))
        if encoder.has_token_vectors:
            raise CheckpointError(
                f"{model} holds a ColBERT model, which gives a vector to every token and none to a text; `uwaga store add` takes it"
            )
        cross = None if reranker is None else Reranker.load(reranker, dtype=getattr(torch, dtype))
        listening = listen(host, port)
    say_engine("serve", model, encoder.explain())

    address = listening.getsockname()
    place = f"[{address[0]}]" if ":" in address[0] else address[0]
    echo(f"uwaga serve: {shown} on http://{place}:{address[1]}/v1")
    sys.stdout.flush()
    service = Service(
        EmbeddingModel(encoder, cross),
        name=shown,
        step_tokens=step_tokens,
        truncate=truncate,
        limits=limits,
        keys=digests,
    )
    run(service, listening, access_log=access_log)


def _warn(host: str, keys: Path | None) -> None:
    """Say what lets in more than may be wanted."""
    if keys is None and host not in _LOOPBACK:
        echo(f"uwaga serve: without --keys, everybody who reaches {host} is answered", err=True)
    if keys is not None and os.name == "posix" and stat.S_IMODE(keys.stat().st_mode) & 0o077:
        echo(f"uwaga serve: {keys} can be read by other accounts of this machine: chmod 600 {keys}", err=True)
    if host not in _LOOPBACK:
        echo("uwaga serve: requests are not encrypted; a proxy in front of it does TLS", err=True)
