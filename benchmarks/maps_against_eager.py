"""What does it cost to look at a model's attention: every weight from Hugging Face, or uwaga's statistics?

GPT-2 with random weights makes a causal pass over N tokens. The statistics of every layer and head are the entropy, the 8 largest weights of each query,
and what each key receives. Eager: `attn_implementation="eager"` and `output_attentions=True`, with the statistics from the matrices that the model
returns, a layer at a time. uwaga: the same model with `uwaga.attend` for its attention. Each side runs in a process of its own, after a pass over a few
tokens. Memory is the most that was resident beyond the model; seconds are those of the better of two passes.
"""

import argparse
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import torch
from harness import DTYPES, Report, in_a_process, options, parse, peak
from torch import Tensor

import uwaga

HEADINGS = ("layers", "H", "D", "N", "type", "time ratio", "memory ratio", "uwaga s", "eager s", "uwaga GB", "eager GB")
OURS, THEIRS = "uwaga", "eager"
TOP = 8


class Statistics(NamedTuple):
    """Of one layer."""

    entropy: Tensor  # (1, H, N)
    top: Tensor  # (1, H, N, 8)
    received: Tensor  # (1, H, N)


class Looked(NamedTuple):
    """What a pass gives."""

    output: Tensor  # (1, N, M)
    layers: list[Statistics]


def eager(layers: int, heads: int, tokens: int, width: int, dtype: torch.dtype) -> Callable[[], Looked]:
    model, ids = _model("eager", layers, heads, tokens, width, dtype)

    def look() -> Looked:
        result = model(ids, output_attentions=True, use_cache=False)
        return Looked(result.last_hidden_state, [_from_matrix(weights) for weights in result.attentions])

    return look


def ours(layers: int, heads: int, tokens: int, width: int, dtype: torch.dtype) -> Callable[[], Looked]:
    from transformers import AttentionInterface

    results: list[Statistics] = []

    def attend(module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, scaling=None, **kwargs):
        assert attention_mask is None
        output, _, m = uwaga.attend(
            query, key, value, mask=uwaga.Causal(), scale=scaling, entropy=True, topk=min(TOP, query.shape[2])
        )
        results.append(Statistics(m.entropy(), m.topk(min(TOP, query.shape[2])).weights, m.received()))
        return output.transpose(1, 2), None

    AttentionInterface.register("uwaga_statistics", attend)
    model, ids = _model("uwaga_statistics", layers, heads, tokens, width, dtype)

    def look() -> Looked:
        results.clear()
        output = model(ids, use_cache=False).last_hidden_state
        return Looked(output, list(results))

    return look


SIDES = {OURS: ours, THEIRS: eager}


def _model(attention: str, layers: int, heads: int, tokens: int, width: int, dtype: torch.dtype):
    """Return the random weights and tokens that both sides have."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_head=heads, n_embd=heads * width, n_positions=tokens, vocab_size=1000, bos_token_id=None, eos_token_id=None,
        attn_implementation=attention,
    )  # fmt: skip
    return GPT2Model(config).eval().to(dtype), torch.randint(1000, (1, tokens))


def _from_matrix(weights: Tensor) -> Statistics:
    top = weights.topk(min(TOP, weights.shape[-1])).values
    return Statistics(torch.special.entr(weights).sum(-1), top, weights.sum(-2))


@torch.no_grad()
def measure(side: str, *shape: int, dtype: torch.dtype) -> tuple[float, int]:
    """Of layers, heads, tokens and width: seconds of the better of two passes, and the bytes of the first, results included."""
    SIDES[side](1, shape[1], 16, shape[3], dtype)()
    look = SIDES[side](*shape, dtype)
    first = peak(look)
    seconds, memory = first.seconds, first.bytes
    del first
    return min(seconds, peak(look).seconds), memory


@torch.no_grad()
def check(heads: int, width: int, dtype: torch.dtype) -> None:
    """A comparison of sides that disagree means nothing. 16: a few roundings, in sums of 48 weights."""
    mine, theirs = (side(2, heads, 48, width, dtype)() for side in SIDES.values())
    pairs = [(mine.output, theirs.output)]
    for one, other in zip(mine.layers, theirs.layers, strict=True):
        pairs += zip(one, other, strict=True)
    for a, b in pairs:
        allowed = 16 * torch.finfo(dtype).eps * max(1.0, float(b.abs().max()))
        if not (difference := float((a.float() - b.float()).abs().max())) <= allowed:
            raise AssertionError(f"the sides differ by {difference:.2e}, more than {allowed:.2e}")


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.add_argument("--tokens", type=lambda text: [int(n) for n in text.split(",")], default=[1024, 2048, 4096])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12, help="H")
    parser.add_argument("--width", type=int, default=64, help="D and E")
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    chosen = parse(parser)
    if chosen.one:
        side, *shape, dtype = chosen.one
        print(*measure(side, *map(int, shape), dtype=DTYPES[dtype]))
        sys.exit()
    if chosen.quick:
        chosen.tokens, chosen.layers, chosen.heads, chosen.width = [32], 2, 2, 16
    report = Report(chosen, "Looking at GPT-2's attention, beside Hugging Face's eager attention", HEADINGS)
    for dtype in chosen.dtype:
        shape = (str(chosen.layers), str(chosen.heads), str(chosen.width))
        if find_spec("transformers") is None:
            report.row(*shape, "-", dtype, "transformers is not installed", *[""] * (len(HEADINGS) - 6))
            continue
        check(chosen.heads, chosen.width, DTYPES[dtype])
        for tokens in chosen.tokens:
            sizes = (str(chosen.layers), str(chosen.heads), str(tokens), str(chosen.width))
            measured = [in_a_process(chosen, side, *sizes, dtype) for side in SIDES]
            seconds, memory = [float(one[0]) for one in measured], [int(one[1]) for one in measured]
            report.row(
                *shape, str(tokens), dtype, f"{seconds[1] / seconds[0]:.2f}", f"{memory[1] / max(memory[0], 1):.1f}",
                *(f"{one:.4g}" for one in seconds), *(f"{one / 1e9:.4f}" for one in memory),
            )  # fmt: skip
    report.say("\nBoth ratios: Hugging Face's figure over uwaga's.")
