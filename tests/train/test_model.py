"""Initial weights: reproducible by seed, with the standard deviations of the papers. And the loss of every model family: equal to
cross_entropy over all logits, also where it is computed in blocks."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import uwaga
from uwaga.models import Config, config
from uwaga.train import step as step_module
from uwaga.train.corpus import Batch
from uwaga.train.errors import ConfigError
from uwaga.train.model import new_model
from uwaga.train.step import Objective

SETTINGS: dict[str, Callable[[], Config]] = {
    "bert": lambda: config("bert", vocab_size=300, d_model=128, num_layers=2, num_heads=4, d_ff=256, max_position_embeddings=64, outputs=("logits",)),
    "gpt2": lambda: config("gpt2", vocab_size=300, d_model=128, num_layers=8, num_heads=4, d_ff=256, max_position_embeddings=64, tie_word_embeddings=False),
    "t5": lambda: config("t5", vocab_size=300, d_model=128, num_layers=2, num_decoder_layers=2, num_heads=4, d_k=16, d_ff=256, gated=True, tie_word_embeddings=False),
    "transformer": lambda: config("uwaga-transformer", vocab_size=300, d_model=128, num_layers=2, num_decoder_layers=2, num_heads=4, d_ff=256),
}  # fmt: skip


@pytest.mark.parametrize("family", SETTINGS)
def test_a_seed_determines_the_weights(family: str) -> None:
    state = torch.get_rng_state()
    one, same, other = (new_model(SETTINGS[family](), seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    for (name, a), b, c in zip(one.named_parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == torch.float32
        assert a.dim() == 1 or not torch.equal(a, c), name
    assert one.training


# Standard deviations of matrices by the end of their names.
EXPECTED = {
    "gpt2": {"token_embedding": 0.02, "query": 0.02, "up": 0.02, "output": 0.02 / 4, "down": 0.02 / 4, "positions": 0.02, "decoder": 0.02},
    # A normal distribution truncated at two standard deviations has 0.88 of the standard deviation.
    "bert": {"token_embedding": 0.0176, "query": 0.0176, "down": 0.0176},
    "t5": {
        "token_embedding": 1.0, "query": (128 * 16) ** -0.5, "key": 128**-0.5, "value": 128**-0.5, "output": 64**-0.5,
        "up": 128**-0.5, "gate": 128**-0.5, "down": 256**-0.5, "decoder": 128**-0.5,
    },
    # Uniform up to sqrt(6 / (in + out)).
    "transformer": {"token_embedding": 128**-0.5, "query": math.sqrt(2 / 256), "up": math.sqrt(2 / 384), "down": math.sqrt(2 / 384)},
}  # fmt: skip


@pytest.mark.parametrize("family", SETTINGS)
def test_matrices_have_the_standard_deviations_of_the_paper(family: str) -> None:
    seen = set()
    for name, weight in new_model(SETTINGS[family](), 0).named_parameters():
        part = name.split(".")[-2]
        if weight.dim() > 1 and part in EXPECTED[family]:
            assert weight.std().item() == pytest.approx(EXPECTED[family][part], rel=0.05), name
            assert abs(weight.mean().item()) < 4 * weight.std().item() / weight.numel() ** 0.5, name
            seen.add(part)
    assert seen == EXPECTED[family].keys()


def test_a_model_larger_than_the_memory_of_the_machine_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        new_model(
            config(
                "gpt2", vocab_size=10, d_model=2**20, num_heads=2, d_ff=2**20, num_layers=2, max_position_embeddings=8
            ),
            0,
        )
    match = re.fullmatch(
        r"model: ([\d,]+) weights take ([\d,.]+) GB in float32, and this machine has [\d,.]+ GB", str(caught.value)
    )
    assert match is not None
    assert 12 * 2**40 < int(match[1].replace(",", "")) < 13 * 2**40


# The loss.


CPU = torch.device("cpu")
SIZES = {"vocab_size": 30, "d_model": 16, "num_heads": 2, "d_ff": 32}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: new_model(config("gpt2", **SIZES, num_layers=1, max_position_embeddings=20), 0),
    "gpt2-untied": lambda: new_model(config("gpt2", **SIZES, num_layers=1, max_position_embeddings=20, tie_word_embeddings=False), 0),
    "bert": lambda: new_model(config("bert", **SIZES, num_layers=1, max_position_embeddings=20, outputs=("logits",)), 0),
    "t5": lambda: new_model(config("t5", **SIZES, num_layers=1, num_decoder_layers=1, d_k=8), 0),
    "transformer": lambda: new_model(config("uwaga-transformer", **SIZES, num_layers=1, num_decoder_layers=1, decoder_vocab_size=25), 0),
    "decoder": lambda: new_model(config("uwaga-transformer", **SIZES, num_layers=0, num_decoder_layers=1), 0),
}  # fmt: skip


def batch(name: str) -> Batch:
    ids = uwaga.Ragged.from_list([torch.arange(3, 12), torch.tensor([5]), torch.arange(2, 9)])
    pairs = name in ("t5", "transformer")
    decoder = (
        uwaga.Ragged.from_list([torch.tensor([0, 4, 5]), torch.tensor([0, 9]), torch.tensor([0])]) if pairs else None
    )
    labels = (decoder or ids).values.flip(0).clone()
    labels[1::3] = -100
    return Batch(ids=ids, decoder_ids=decoder, labels=labels)


def logits(model: nn.Module, x: Batch) -> Tensor:
    return model(x.ids, x.decoder_ids).logits.values


@pytest.mark.parametrize("name", MODELS)
def test_it_equals_cross_entropy_over_all_logits_also_in_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = MODELS[name](), batch(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    for most in (2**26, 60):
        monkeypatch.setattr(step_module, "_MOST_LOGITS", most)
        for smoothing in (0.0, 0.1):
            expected = functional.cross_entropy(logits(model, x), x.labels, reduction="sum", label_smoothing=smoothing)
            result = Objective(model, smoothing)(*x.inputs(CPU)[0])
            torch.testing.assert_close(result, expected)
            theirs, ours = (torch.autograd.grad(loss, list(model.parameters())) for loss in (expected, result))
            for a, b in zip(theirs, ours, strict=True):
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(Objective(model, smoothing)(*x.inputs(CPU)[0]), expected)
