"""Time calls of one checkout: `two_trees.py` starts a process of this program for each checkout and asks them in turn.

A question is a line of JSON, [call, argument, ...]; the answer is the least seconds of several calls. The program uses only public names, so that it also runs
in older checkouts.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import uwaga

HEADS = 12
# Calls of one answer, which is the least; 3 of the others.
_REPEATS = {"serve": 1, "ring": 1} | dict.fromkeys(("attend", "search"), 20)
_REPEATS |= dict.fromkeys(("forward", "causal", "gradients", "causal-gradients"), 40)
_CLIENTS = 8


@cache
def _operands(tokens: int, width: int, dtype: str) -> list[torch.Tensor]:
    return [torch.randn(1, HEADS, tokens, width, dtype=getattr(torch, dtype)) for _ in range(3)]


def attention(name: str, tokens: int, width: int, dtype: str) -> float:
    """One call; for "gradients", its backward pass alone."""
    operands, mask = _operands(tokens, width, dtype), uwaga.Causal() if "causal" in name else None
    if not name.endswith("gradients"):
        return _seconds(lambda: uwaga.attention(*operands, mask=mask))
    leaves = [operand.detach().requires_grad_() for operand in operands]
    output = uwaga.attention(*leaves, mask=mask)
    return _seconds(lambda: output.backward(output.detach()))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


@cache
def _texts(file: str) -> list[str]:
    return json.loads(Path(file).read_text(encoding="utf-8"))


@cache
def _encoder(dtype: str) -> uwaga.TextEncoder:
    return uwaga.TextEncoder.load("minilm", dtype=getattr(torch, dtype))


def encode(_: str, file: str, dtype: str) -> float:
    """The vectors of the texts, by all-MiniLM-L6-v2."""
    return _seconds(lambda: _encoder(dtype).encode(_texts(file), overflow="truncate"))


@cache
def _reranker(folder: str) -> uwaga.Reranker:
    return uwaga.Reranker.load(folder)


def rerank(_: str, file: str, folder: str) -> float:
    """The ranking of the texts for the first of them."""
    query, *passages = _texts(file)
    return _seconds(lambda: _reranker(folder).rank(query[:80], passages, overflow="truncate"))


@cache
def _database(folder: str, rows: int, width: int) -> uwaga.SoftDatabase:
    generator = np.random.default_rng(0)
    database = uwaga.SoftDatabase.create(folder, key_width=width)
    database.append(torch.from_numpy(generator.standard_normal((rows, width), dtype=np.float32)))
    return database


def store(name: str, folder: str, rows: int, width: int) -> float:
    """Attention over all rows ("attend"), or the highest ten ("search"), for four queries."""
    database = _database(folder, rows, width)
    query = torch.randn(4, width, generator=torch.Generator().manual_seed(1))
    if name == "attend":
        return _seconds(lambda: database.attend(query))
    return _seconds(lambda: database.search(query, 10))


@cache
def _port() -> int:
    """Start a server of all-MiniLM-L6-v2 for the life of this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "uwaga.cli",
        "serve",
        "minilm",
        "--name",
        "model",
        "--truncate",
        "--port",
        str(port),
    ]
    _servers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if _servers[-1].poll() is not None:
                raise SystemExit("the server ended before it answered") from None
            time.sleep(0.1)
        else:
            return port


_servers: list[subprocess.Popen[bytes]] = []


def serve(_: str, file: str) -> float:
    """A request for each text, sent by eight clients."""
    port, texts, failed = _port(), _texts(file), []

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for text in texts[first::_CLIENTS]:
            body = json.dumps({"model": "model", "input": text})
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                failed.append(response.status)

    def run() -> None:
        clients = [threading.Thread(target=client, args=(first,)) for first in range(_CLIENTS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()

    result = _seconds(run)
    if failed:
        raise SystemExit(f"the server rejected {len(failed)} requests: {failed[0]}")
    return result


def ring(_: str, tokens: int, width: int) -> float:
    """Causal attention of one sequence over two processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rank", folder, str(tokens), str(width)]
        ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE) for rank in range(2)]
        answers = [rank.communicate()[0] for rank in ranks]
    return max(map(float, answers))


def _rank(folder: str, tokens: str, width: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/group", None, 2, int(rank))
    torch.manual_seed(int(rank))
    operands = [torch.randn(1, 4, int(tokens) // 2, int(width)) for _ in range(3)]
    times = []
    for _ in range(4):
        dist.barrier()
        times.append(_seconds(lambda: uwaga.sequence_parallel.attention(*operands, mask=uwaga.Causal())))
    dist.barrier()
    print(min(times))
    dist.destroy_process_group()


CALLS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("forward", "causal", "gradients", "causal-gradients"), attention),
    "encode": encode,
    "rerank": rerank,
    "attend": store,
    "search": store,
    "serve": serve,
    "ring": ring,
}


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(min(CALLS[name](name, *arguments) for _ in range(_REPEATS.get(name, 3))), flush=True)
    for server in _servers:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(*sys.argv[2:])
    else:
        if hasattr(os, "sched_setaffinity") and "--pinned" in sys.argv:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        main()
