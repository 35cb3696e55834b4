"""Initial weights: reproducible by seed, with the standard deviations of the papers."""

import math
import re
from collections.abc import Callable

import pytest
import torch

from uwaga.models import Config, config
from uwaga.train.errors import ConfigError
from uwaga.train.model import new_model

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


@pytest.mark.parametrize("family", SETTINGS)
def test_norms_are_ones_and_biases_zeros(family: str) -> None:
    for name, weight in new_model(SETTINGS[family](), 0).named_parameters():
        if weight.dim() == 1:
            assert (weight == float(name.endswith("norm.weight"))).all(), name


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


@pytest.mark.parametrize("family", SETTINGS)
def test_the_initial_loss_is_about_that_of_uniform_predictions(family: str, one_thread: None) -> None:
    import uwaga
    from uwaga.train.model import Objective

    ids = uwaga.Ragged.from_list([torch.arange(3, 40), torch.arange(100, 120)])
    decoder = ids if family in ("t5", "transformer") else None
    with torch.no_grad():
        loss = Objective(new_model(SETTINGS[family](), 0).eval())(ids, decoder, ids.values.flip(0), None) / 57
    assert loss.item() == pytest.approx(math.log(300), abs=1.0)


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
