"""How long does it take to save a long recording, to load it, and to see something of it, and how large is the file?

The recording is of one text: queries and keys of some layers, as `uwaga.watch` keeps them, and token strings. The size of the queries and keys is given next
to the file's. "shown" is the time from the path to the explorer's first reply for the overview of a layer, which is from sampled rows if the map is long.
"same" tells whether entries, a row and its queries and keys have the bits of the recording. The file was just written, so it is in the page cache.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from harness import Report, options, parse

import uwaga
from uwaga.inspect.recordings.recording import TokenStrings
from uwaga.nn.attention_id import AttentionId
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

HEADINGS = ("L", "H", "N", "D", "type", "Q and K MB", "file MB", "save s", "load s", "shown s", "same")
QUESTION = {
    "request": "overview", "side": "0", "kind": "decoder", "layer": 0, "merge": "tokens", "specials": "show", "pooling": "sum"
}  # fmt: skip
_T = TypeVar("_T")


def timed(work: Callable[[], _T]) -> tuple[_T, float]:
    begun = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begun


def recorded(layers: int, heads: int, tokens: int, width: int, dtype: torch.dtype) -> uwaga.Recording:
    strings = [f"token{n % 5000}" for n in range(tokens)]
    recording = uwaga.Recording(strings=TokenStrings(None, strings), model="benchmark")
    none = dict.fromkeys(("bias", "scale", "softcap", "sinks"))
    for layer in range(layers):
        query, key = (torch.randn(1, heads, tokens, width).to(dtype) for _ in range(2))
        where, arguments = AttentionId("decoder", layer), {"mask": uwaga.Causal()} | none
        recording.record(where, query, key, arguments, None)
        recording.store(where, query, key, arguments)
    recording.close()
    return recording


def shown(path: Path) -> uwaga.Recording:
    """The recording, after the explorer has drawn a head of it."""
    recording = uwaga.Recording.load(path)
    service = ViewService(View.of(recording))
    service.answer(QUESTION)
    return recording


def same(one: uwaga.Recording, other: uwaga.Recording, tokens: int) -> bool:
    for name, m in one.maps.items():
        again = other.maps[name]
        for index in ((..., tokens - 1, slice(None)), (..., tokens // 2, tokens // 3)):
            if not torch.equal(torch.as_tensor(m[index]), torch.as_tensor(again[index])):
                return False
        where = AttentionId(*name)
        pair = [x._stack(where).attentions[where] for x in (one, other)]
        if not (torch.equal(pair[0].queries[0], pair[1].queries[0]) and torch.equal(pair[0].keys[0], pair[1].keys[0])):
            return False
    return one.tokens == other.tokens


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--layers", type=int, default=6, help="L")
    parser.add_argument("--heads", type=int, default=12, help="H")
    parser.add_argument("--tokens", type=int, default=32_768, help="N")
    parser.add_argument("--width", type=int, default=32, help="D")
    parser.add_argument("--folder", type=Path, default=None, help="where the file is written; the default of tempfile")
    chosen = parse(parser)
    if chosen.quick:
        chosen.layers, chosen.tokens = 2, 256
    report = Report(chosen, "A recording saved, loaded and shown", HEADINGS)
    for dtype in chosen.dtype:
        sizes = (chosen.layers, chosen.heads, chosen.tokens, chosen.width)
        recording = recorded(*sizes, getattr(torch, dtype))
        with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
            path = Path(folder, "a.safetensors")
            _, saving = timed(lambda: recording.save(path))  # noqa: B023  # called at once
            loaded, loading = timed(lambda: uwaga.Recording.load(path))  # noqa: B023
            _, showing = timed(lambda: shown(path))  # noqa: B023
            bits = "yes" if same(recording, loaded, chosen.tokens) else "NO"
            megabytes = (f"{size / 1e6:.1f}" for size in (recording.nbytes, path.stat().st_size))
            seconds = (f"{duration:.3f}" for duration in (saving, loading, showing))
            report.row(*map(str, sizes), dtype, *megabytes, *seconds, bits)
