"""How much memory does encoding texts need beyond the model, compared with sentence-transformers, ONNX Runtime and OpenVINO?

The sides and texts are those of encode.py, documents cut at 256 tokens. Each side runs in a process of its own. It loads the model, encodes one word,
which loads everything that the first use needs, and then encodes all texts once. Memory is the peak of Linux's count of resident memory during that,
less the resident memory just before. The process first returns what loading and converting left in the allocator, since using it again would not be
counted.
"""

import argparse
import ctypes
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from encode import Encode, contestants, corpus_options, documents, model_folder, parse_corpus
from harness import DTYPES, Report, in_a_process, peak

from uwaga import TextEncoder

HEADINGS = ("side", "texts", "beyond MiB", "s")


def makers(chosen: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Encode]]:
    """Return how to make each side."""

    def ours(name: str) -> Encode:
        return partial(TextEncoder.load(folder, dtype=DTYPES[name]).encode, overflow="truncate")

    return {f"uwaga {name}": partial(ours, name) for name in chosen.dtype} | contestants(chosen, folder)


def measure(chosen: argparse.Namespace, side: str) -> tuple[int, float]:
    """Return the bytes beyond the model, and seconds."""
    texts, encode = documents(chosen), makers(chosen, chosen.model)[side]()
    encode(["word"])
    ctypes.CDLL(None).malloc_trim(0)
    result = peak(lambda: encode(texts))
    return result.bytes, result.seconds


def main() -> None:
    parser = corpus_options("How much memory does encoding texts need beyond the model?")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parse_corpus(parser)
    if chosen.one is not None:
        print("\n", *measure(chosen, chosen.one))
        sys.exit()
    report = Report(chosen, "Memory of texts to vectors", HEADINGS)
    with model_folder(chosen, chosen.shape) as folder:
        texts = ["--documents", str(chosen.documents), "--dtype", ",".join(chosen.dtype)]
        texts += ["--quick"] * chosen.quick + ([] if chosen.corpus is None else ["--corpus", str(chosen.corpus)])
        for side in makers(chosen, folder):
            beyond, seconds = in_a_process(chosen, side, "--model", str(folder), *texts)[-2:]
            report.row(side, str(len(documents(chosen))), f"{int(beyond) / 2**20:.0f}", f"{float(seconds):.2f}")


if __name__ == "__main__":
    main()
