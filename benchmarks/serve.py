"""How many requests a second does `uwaga serve` answer, compared with other servers of the same model?

A request has one paragraph of the corpus, in OpenAI's form. 1, 8 and 64 clients each send the next request as soon as they have an answer. The sides are
`uwaga serve`; FastAPI with SentenceTransformer.encode, a plain server as people write it; and infinity-emb (torch). A side that is not installed is left out.
All sides have the same threads and share the machine with the load generator: autocannon (--autocannon names the folder in which `npm install autocannon` was
run), or else threads of this process, which take more of the processor. The sides take turns: each row is the median of --rounds runs of --seconds.

Before timing, the benchmark compares a vector of every side with uwaga.TextEncoder's: uwaga's own byte for byte, the others' by their cosine.
"""

import argparse
import http.client
import importlib.util
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from encode import documents, model_folder
from harness import Report, options, parse

from uwaga import TextEncoder

CLIENTS = (1, 8, 64)
OURS, PLAIN, INFINITY = "uwaga serve", "FastAPI + sentence-transformers", "infinity-emb"
HEADINGS = ("clients", "side", "requests/s", "p50 ms", "p99 ms", "failed", "ratio", "p99 of uwaga's")
_WORDS = 200  # of a paragraph at most: about 256 tokens, where sentence-transformers cuts texts of all-MiniLM-L6-v2
_START_SECONDS = 120

# autocannon's own command sends one body; its module takes a list of them.
_AUTOCANNON = """
const autocannon = require(process.argv[1]);
const options = JSON.parse(require('fs').readFileSync(0, 'utf8'));
autocannon(options, (error, result) => {
    if (error) throw error;
    console.log(JSON.stringify({ rate: result['2xx'] / result.duration, p50: result.latency.p50, p99: result.latency.p99,
        failed: result.errors + result.timeouts + result.non2xx }));
});
"""

_INFINITY = "from infinity_emb.cli import cli; cli()"  # the package has no __main__


class Load(NamedTuple):
    """Measurements of one run of the load generator."""

    rate: float  # answers per second
    p50: float  # milliseconds
    p99: float
    failed: float


def commands(folder: Path, infinity: Path | None) -> dict[str, list[str]]:
    """Return the commands of the installed sides; a port comes last."""
    sides = {OURS: [sys.executable, "-m", "uwaga.cli", "serve", str(folder), "--name", "model", "--truncate", "--port"]}
    if all(map(_is_installed, ("fastapi", "sentence_transformers"))):
        sides[PLAIN] = [sys.executable, __file__, "--peer", str(folder)]
    if infinity is not None:
        options = ["--engine", "torch", "--device", "cpu", "--served-model-name", "model", "--url-prefix", "/v1"]
        sides[INFINITY] = [str(infinity), "-c", _INFINITY, "v2", "--model-id", str(folder), *options, "--port"]
    return sides


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def plain_server(folder: str, port: int) -> None:
    """As in most tutorials: encode is called by the threads that FastAPI has for functions that are not async."""
    import fastapi
    import torch
    import uvicorn
    from pydantic import BaseModel
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    model, app = SentenceTransformer(folder, device="cpu"), fastapi.FastAPI()

    class Body(BaseModel):
        input: list[str]
        model: str = "model"

    @app.post("/v1/embeddings")
    def embed(body: Body) -> dict:
        vectors = model.encode(body.input, show_progress_bar=False)
        data = [{"object": "embedding", "index": n, "embedding": vector.tolist()} for n, vector in enumerate(vectors)]
        return {"object": "list", "data": data, "model": body.model}

    uvicorn.run(app, port=port, log_level="error")


@contextmanager
def serving(command: Sequence[str], threads: int) -> Iterator[int]:
    """Start a server, and yield its port once it answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen([*command, str(port)], env=environment, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{' '.join(command)} does not answer") from None
                time.sleep(0.2)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def post(connection: http.client.HTTPConnection, body: str) -> bytes:
    connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {content[:200]!r}")
    return content


def load(port: int, bodies: Sequence[str], clients: int, seconds: float, autocannon: Path | None) -> Load:
    if autocannon is None:
        return _by_threads(port, bodies, clients, seconds)
    headers = {"content-type": "application/json"}
    sent = {
        "url": f"http://127.0.0.1:{port}/v1/embeddings", "connections": clients, "duration": max(1, round(seconds)), "method": "POST",
        "headers": headers, "requests": [{"body": body} for body in bodies], "timeout": 120,
    }  # fmt: skip
    command = ["node", "-e", _AUTOCANNON, str(autocannon.resolve() / "node_modules" / "autocannon")]
    said = subprocess.run(command, input=json.dumps(sent), stdout=subprocess.PIPE, text=True, check=True).stdout
    return Load(**json.loads(said))


def _by_threads(port: int, bodies: Sequence[str], clients: int, seconds: float) -> Load:
    end, times = time.perf_counter() + seconds, list[float]()
    numbers = itertools.count()

    def client() -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            while True:
                begun = time.perf_counter()
                post(connection, bodies[next(numbers) % len(bodies)])
                times.append(time.perf_counter() - begun)
                if time.perf_counter() >= end:
                    return

    begun = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return Load(len(times) / (time.perf_counter() - begun), p50, p99, 0)


def check(port: int, text: str, encoder: TextEncoder, *, is_ours: bool) -> None:
    """A comparison of sides that give other vectors means nothing. Raises AssertionError."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        answer = json.loads(post(connection, json.dumps({"input": [text], "model": "model"})))
    vector, expected = np.float32(answer["data"][0]["embedding"]), encoder.encode([text])[0]
    cosine = vector @ expected / np.linalg.norm(vector) / np.linalg.norm(expected)
    if (is_ours and vector.tobytes() != expected.tobytes()) or not cosine > 0.9999:
        raise AssertionError(f"the sides differ: their cosine is {cosine}")


def run(chosen: argparse.Namespace, report: Report, folder: Path) -> None:
    texts = [" ".join(part.split()[:_WORDS]) for text in documents(chosen) for part in text.split("\n\n")]
    paragraphs = [text for text in texts if len(text.split()) > 4]
    some = paragraphs[:: max(1, len(paragraphs) // chosen.texts)]
    np.random.default_rng(0).shuffle(some)
    bodies = [json.dumps({"input": [text], "model": "model"}) for text in some]
    encoder = TextEncoder.load(folder)
    measured: dict[tuple[int, str], list[Load]] = {}
    for _ in range(chosen.rounds):
        for side, command in commands(folder, chosen.infinity).items():
            with serving(command, chosen.threads) as port:
                check(port, some[0], encoder, is_ours=side == OURS)
                for clients in chosen.clients:
                    result = load(port, bodies, clients, chosen.seconds, chosen.autocannon)
                    measured.setdefault((clients, side), []).append(result)
    for clients in chosen.clients:
        for side in commands(folder, chosen.infinity):
            report.row(str(clients), side, *_figures(measured, clients, side))


def _figures(measured: Mapping[tuple[int, str], Sequence[Load]], clients: int, side: str) -> Iterator[str]:
    result, ours = (Load(*map(statistics.median, zip(*measured[clients, name], strict=True))) for name in (side, OURS))
    yield from (f"{result.rate:.1f}", f"{result.p50:.1f}", f"{result.p99:.1f}", f"{result.failed:g}")
    yield from (f"{ours.rate / result.rate:.2f}", f"{result.p99 / ours.p99:.2f}")


def main() -> None:
    parser = options("How many requests a second are answered?", grid=False)
    parser.add_argument("--model", type=Path, help="a sentence-transformers directory; unset: a random model")
    parser.add_argument("--corpus", type=Path, help="a .jsonl.gz of documents; unset: random words")
    parser.add_argument("--documents", type=int, default=703, help="number of documents to read")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=list(CLIENTS))
    parser.add_argument("--texts", type=int, default=2000, help="number of different paragraphs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--autocannon", type=Path, help="a folder with autocannon in its node_modules")
    parser.add_argument(
        "--infinity", type=Path, help="a Python that has infinity-emb, which needs older versions of transformers"
    )
    chosen = parse(parser)
    if chosen.quick:
        chosen.clients, chosen.texts, chosen.rounds, chosen.documents = [1, 2], 4, 1, 4
    report = Report(chosen, "Vectors over HTTP", HEADINGS)
    generator = "autocannon" if chosen.autocannon else "threads of Python"
    with model_folder(chosen) as folder:
        run(chosen, report, folder)
    report.say(f"\nThe load comes from {generator}; the column ratio is uwaga's requests a second over that side's.\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        plain_server(sys.argv[2], int(sys.argv[3]))
    else:
        main()
