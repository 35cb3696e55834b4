"""Ragged calls that are divided over processes, and models over long texts: made from their names by the processes, and by the test in one."""

import random
from collections.abc import Callable
from typing import Any

import torch
from sequence_cases import Whole, attend, ids, relative, sinks
from tiny_transformer import tiny
from torch import Tensor

import uwaga
from uwaga.ops.ragged import Cut, Ragged

LONG = (5, 0, 4200, 7, 0, 700)  # one row longer than all others together, and more than two chunks of keys


def make(
    lengths: tuple[int, ...],
    keys: tuple[int, ...] | None = None,
    *,
    heads: int = 2,
    groups: int = 2,
    dtype: torch.dtype = torch.float32,
    options: Callable[[], dict[str, Any]] = dict,
    parameters: tuple[str, ...] = (),
) -> Callable[[], Whole]:
    def made() -> Whole:
        torch.manual_seed(sum(lengths) + heads)

        def batch(rows: tuple[int, ...], heads: int, width: int) -> Ragged:
            offsets = torch.tensor([0, *rows]).cumsum(0)
            return Ragged(torch.randn(sum(rows), heads, width).to(dtype), offsets)

        rows = lengths if keys is None else keys
        query, key, value = batch(lengths, heads, 16), batch(rows, groups, 16), batch(rows, groups, 24)
        grad_output, result = torch.randn(sum(lengths), heads, 24).to(dtype), options()
        learned = [
            x.parameter() if isinstance(x, uwaga.AlibiBias | uwaga.RelativeBias) else x
            for x in map(result.get, parameters)
        ]
        return Whole(query, key, value, result, grad_output, learned)

    return made


def _starts() -> dict[str, Any]:
    starts = torch.tensor([0, 3, -20, 400, 5, 0])
    slopes = torch.tensor([0.5, 0.01], requires_grad=True)
    return {"mask": uwaga.Window(300, 2, start=starts), "bias": uwaga.AlibiBias(slopes, start=starts)}


def _bias() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {"mask": uwaga.Causal(), "bias": torch.randn(4, 2, 600, 600, generator=generator).requires_grad_()}


def _documents() -> dict[str, Any]:
    return {"mask": uwaga.Causal() & uwaga.Documents(ids(2, 9, 2000, 2200, 701))}


CASES = {
    "short rows": make((3, 1, 40, 40, 2, 90, 17, 5), options=lambda: {"mask": uwaga.Causal()}),
    "lengths": make(LONG, options=lambda: {"mask": uwaga.KeyLengths(torch.tensor([5, 0, 4000, 0, 0, 13]))}),
    "documents": make(LONG, options=_documents),
    "starts": make(LONG, options=_starts, parameters=("bias",)),
    "relative": make(LONG, options=relative, parameters=("bias",)),
    "learned bias": make((3, 600, 7, 200), options=_bias, parameters=("bias",)),
    "sinks and grouped heads": make(LONG, heads=6, options=sinks, parameters=("sinks",)),
    "other keys": make((5, 300, 0, 40), (0, 2600, 3, 900)),
    "dropout": make((3, 600, 7, 200), options=lambda: {"mask": uwaga.Causal(), "dropout": 0.3}),
    "without softmax": make((3, 2600, 7), options=lambda: {"mask": uwaga.Causal(), "normalize": None}),
    "fewer tokens than processes": make((1,)),
    "no rows": make(()),
}

# Cases of `make test`, each the only one of its kind.
GATE = {
    "short rows", "starts", "learned bias", "sinks and grouped heads", "other keys", "dropout", "without softmax", "no rows",
}  # fmt: skip
GATE_OF_MAPS = {"starts", "sinks and grouped heads", "other keys", "no rows"}
# Maps have neither dropout nor a form without softmax.
CASES_OF_MAPS = [name for name in CASES if name not in ("dropout", "without softmax")]


def longest_keys(call: Whole) -> int:
    return max(call.key.lengths.tolist(), default=0)


def weights_of(call: Whole) -> Tensor:
    """A weight for each query, 0 for some."""
    tokens = torch.arange(len(call.query.values))
    return torch.where(tokens % 3 > 0, tokens % 7 - 2.0, 0.0)


def gradients_of_ragged(operands: list[Ragged], call: Whole, part: slice, **options: Any) -> Any:
    """Output, lse, and the gradients of query, key, value and parameters."""
    operands = [x.with_values(x.values.clone().requires_grad_()) for x in operands]
    output, lse = attend(*operands, **call.options, **options)
    loss = (output.values * call.grad_output[part]).sum() + torch.where(lse.values.isfinite(), lse.values, 0.0).sum()
    result = torch.autograd.grad(loss, [*(x.values for x in operands), *call.parameters])
    return [output.values.detach(), lse.values.detach(), *result]


def cuts_of(lengths: Tensor, size: int, seed: str) -> list[Cut]:
    """Where each process's part begins, and the end: anywhere in rows; every other time one process has nothing."""
    chosen, rows = random.Random(f"{seed} {size}"), len(lengths)
    tokens = int(lengths.sum())
    at = sorted(chosen.randint(0, tokens) for _ in range(size - 1))
    if size > 2 and chosen.random() < 0.5:
        at[1] = at[0]
    ends = lengths.cumsum(0)
    result = [Cut(0)]
    for token in at:
        row = int(torch.searchsorted(ends, token, right=True)) if rows else 0
        position = token - int(ends[row] - lengths[row]) if row < rows else 0
        result.append(Cut(row, position or None))
    return [*result, Cut(rows)]


def parts_of(call: Whole, size: int, rank: int, seed: str) -> tuple[list[Ragged], slice]:
    """Query, key and value of a process, which has the same share of the keys of a row as of its queries; and where its queries are."""
    cuts = cuts_of(call.query.lengths, size, seed)[rank : rank + 2]
    of_keys = [
        Cut(row, None if at is None else at * int(call.key.lengths[row]) // int(call.query.lengths[row]))
        for row, at in cuts
    ]
    first, last = (int(call.query.offsets[row]) + (at or 0) for row, at in cuts)
    return [call.query.part(*cuts), call.key.part(*of_keys), call.value.part(*of_keys)], slice(first, last)


_SIZES = {"vocab_size": 30, "num_heads": 2, "d_ff": 24}
_SHORT = _SIZES | {"max_position_embeddings": 80}
MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "gpt2": lambda: tiny("gpt2", **_SHORT),
    "bert": lambda: tiny("bert", outputs=("logits",), **_SHORT),
    "llama": lambda: tiny("llama", num_kv_heads=1, d_k=8, **_SHORT),
    "t5": lambda: tiny("t5", num_layers=1, d_k=8, **_SIZES),
}
HEADS = ("AutoModelForMaskedLM", "AutoModelForTokenClassification")  # of RoBERTa
OF_TRANSFORMERS = ("llama", "gpt2", "roberta", "modernbert", "gemma3_text")


def model_and_inputs(name: str, lengths: tuple[int, ...] = (9, 33, 1, 20)) -> Any:
    """A model in training mode, ids, and options; a decoder reads other rows than its encoder."""
    torch.manual_seed(3)
    model = MODELS[name]().train()
    tokens = Ragged(torch.randint(4, 30, (sum(lengths),)), torch.tensor([0, *lengths]).cumsum(0))
    options = {}
    if name == "t5":
        others = torch.tensor([0, *(2 * n // 3 for n in lengths)]).cumsum(0)
        options["decoder_ids"] = Ragged(torch.randint(4, 30, (int(others[-1]),)), others)
        model.eval()  # hidden states of encoder and decoder are dropped from other rows on
    return model, tokens, options


def classifier_and_ids() -> Any:
    """A BERT whose outputs are of first tokens, and two rows that no process shares where there are two."""
    model = tiny("bert", seed=3, num_layers=1, outputs=("pooled", "sequence"), **_SHORT)
    return model, torch.randint(4, 30, (6, 5))  # 1, 2 or 3 processes have 6, 3 or 2 rows each


def output_of(output: Any) -> Ragged:
    assert isinstance(output.logits, Ragged)
    return output.logits


def foreign_model_and_ids(name: str, auto: str = "AutoModel", **config_options: Any) -> Any:
    import tiny_models
    import transformers

    from uwaga.integrations import pack_linear, register_with_transformers

    register_with_transformers()
    torch.manual_seed(0)
    sizes = (tiny_models.ENCODERS | tiny_models.DECODERS)[name]
    config = transformers.AutoConfig.for_model(name, **{**tiny_models.SHARED, **sizes, **config_options})
    model = getattr(transformers, auto).from_config(config, attn_implementation="uwaga").eval()
    pack_linear(model)
    ids = torch.randint(2, 60, (2, 41))
    ids[0, 7] = ids[1, 30] = config.pad_token_id or 0  # in RoBERTa's family such a token has no position of its own
    return model, ids
