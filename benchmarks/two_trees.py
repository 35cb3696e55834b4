"""How long does a call take, compared with the same call in another checkout of this project?

Two processes, one for each checkout, are asked in turn. An answer is the least of several calls, and a row is the median of the answers' ratios. The calls are
attention, encoding, reranking, search, serving and attention over two processes. Unless they include the last two, both processes are pinned to one core. The
other checkout has its own .venv, as `make setup` makes it.

    python benchmarks/two_trees.py --other FOLDER [--calls encode,rerank,attend,search,serve,ring]
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from encode import documents
from harness import Report, options, parse, some_of
from rerank import write_cross_encoder
from tree_calls import CALLS, HEADS

HEADINGS = ("call", "size", "type", "this / other", "this ms", "other ms")
THIS = Path(__file__).parents[1]
_ATTENTION = ("forward", "causal", "gradients", "causal-gradients")


class Worker:
    """A process of a checkout that times calls."""

    def __init__(self, tree: Path, *options: str) -> None:
        python = tree / ".venv/bin/python"
        self._process = subprocess.Popen(
            [
                python if tree != THIS and python.exists() else sys.executable,
                THIS / "benchmarks/tree_calls.py",
                *options,
            ],
            cwd=tree,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *question: object) -> float:
        """Seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def questions(
    chosen: argparse.Namespace, folder: Path
) -> Iterator[tuple[str, str, tuple[object, ...], tuple[object, ...]]]:
    """The size and the type of each row, and the question to each of the two checkouts, which get folders of their own."""
    for dtype, tokens, width, name in itertools.product(chosen.dtype, chosen.n, chosen.d, _ATTENTION):
        if name in chosen.calls:
            question = (name, tokens, width, dtype)
            yield f"H {HEADS}, N {tokens}, D {width}", dtype, question, question
    texts, rows = folder / "texts.json", 2_000 if chosen.quick else 200_000
    texts.write_text(json.dumps([" ".join(text.split()[:150]) for text in documents(chosen)][: chosen.texts]))
    if "encode" in chosen.calls:
        for dtype in chosen.dtype:
            yield f"{chosen.texts} texts", dtype, ("encode", str(texts), dtype), ("encode", str(texts), dtype)
    if "rerank" in chosen.calls:
        write_cross_encoder(folder / "reranker", chosen)
        question = ("rerank", str(texts), str(folder / "reranker"))
        yield f"{chosen.texts} texts", "float32", question, question
    for name in ("attend", "search"):
        if name in chosen.calls:
            this, other = ((name, str(folder / side), rows, 64) for side in ("this", "other"))
            yield f"4 queries, {rows:,} rows, D 64", "float32", this, other
    if "serve" in chosen.calls:
        yield f"{chosen.texts} requests", "float32", ("serve", str(texts)), ("serve", str(texts))
    if "ring" in chosen.calls:
        question = ("ring", 64 if chosen.quick else 4096, 64)
        yield f"H 4, N {question[1]}, D 64, 2 processes", "float32", question, question


def compare(chosen: argparse.Namespace) -> None:
    report = Report(chosen, f"Compared with {chosen.other.name}", HEADINGS)
    pinned = ["--pinned"] if not {"serve", "ring"} & set(chosen.calls) else []
    this, other = Worker(THIS, *pinned), Worker(chosen.other, *pinned)
    with tempfile.TemporaryDirectory() as folder:
        for size, dtype, question, their_question in questions(chosen, Path(folder)):
            pairs = [(this.ask(*question), other.ask(*their_question)) for _ in range(chosen.rounds)]
            ours, theirs = (f"{median(side) * 1e3:.4g}" for side in zip(*pairs, strict=True))
            report.row(question[0], size, dtype, f"{median(a / b for a, b in pairs):.3f}", ours, theirs)
        this.close()
        other.close()


if __name__ == "__main__":
    parser = options(__doc__)
    parser.set_defaults(n=[64])
    parser.add_argument("--other", type=Path, default=THIS, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=40, help="answers of each process to a row")
    parser.add_argument("--calls", type=some_of(CALLS), default=list(_ATTENTION), help="calls, comma-separated")
    parser.add_argument(
        "--texts", type=int, default=64, help="of encoding, reranking and serving, at most 150 words each"
    )
    chosen = parse(parser)
    chosen.other, chosen.model, chosen.corpus, chosen.documents = chosen.other.resolve(), None, None, chosen.texts
    if chosen.quick:
        chosen.rounds, chosen.texts = 2, 4
    compare(chosen)
