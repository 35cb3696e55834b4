"""Watching a model on a GPU: how long does recording every layer take compared with the model by itself, and with eager attention with its weights?

A model of GPT-2's shape of transformers, with random weights, reads one text.
"""

from collections.abc import Callable
from typing import Any

import torch
from device import Bench, megabytes, milliseconds, parse, peak_bytes, ratio, shown

import uwaga

HEADINGS = ("tokens", "way", "ms", "of sdpa", "MB of the device")


def main(bench: Bench) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel  # here: without a GPU nothing needs it

    uwaga.integrations.register_with_transformers()
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100} if bench.quick else {}
    longest = 64 if bench.quick else 32768
    model = GPT2LMHeadModel(GPT2Config(n_positions=longest, **shape)).to(bench.device, torch.bfloat16).eval()
    bench.table("All layers of a GPT-2-shaped model watched, in bfloat16", HEADINGS)
    for tokens in (longest,) if bench.quick else (4096, longest):
        ids = torch.randint(0, model.config.vocab_size, (1, tokens), device=bench.device)
        measure(bench, model, ids)


def measure(bench: Bench, model: Any, ids: torch.Tensor) -> None:
    def plain(attention: str, weights: bool = False) -> Callable[[], object]:
        def run() -> object:
            model.set_attn_implementation(attention)
            with torch.no_grad():
                return model.transformer(ids, use_cache=False, output_attentions=weights)

        return run

    def watched(device: str | None, read: bool = False) -> Callable[[], object]:
        def run() -> object:
            model.set_attn_implementation("sdpa")
            with uwaga.watch(model, device=device) as recording, torch.no_grad():
                model.transformer(ids, use_cache=False)
            recording.maps[("decoder", 0)]  # which waits for copies
            return [attention_map.entropy() for attention_map in recording.maps.values()] if read else recording

        return run

    ways = {
        "sdpa, no weights": plain("sdpa"),
        "uwaga, no weights": plain("uwaga"),
        "watched, kept on the device": watched(None),
        "watched, kept by the host": watched("cpu"),
        "watched, and the entropy of every head and token": watched(None, read=True),
        "eager, all weights": plain("eager", weights=True),
    }
    result = milliseconds(bench, ways)
    for name, run in ways.items():
        spent = result[name]
        memory = None if spent is None else peak_bytes(bench, run)
        bench.row(ids.shape[1], name, shown(spent), ratio(spent, result["sdpa, no weights"]), megabytes(memory))


if __name__ == "__main__":
    main(parse(__doc__))
