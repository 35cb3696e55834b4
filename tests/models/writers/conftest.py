"""Models that write text, thrice: here, in transformers, and there in float64, all from one checkpoint."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from uwaga.models import load

_GPT2 = {
    "vocab_size": 40,
    "n_positions": 24,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": None,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
_T5 = {
    "vocab_size": 40,
    "d_model": 20,
    "d_kv": 6,
    "d_ff": 28,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_MARIAN = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
    "pad_token_id": 39,
    "eos_token_id": 1,
    "decoder_start_token_id": 39,
    "forced_eos_token_id": None,
}

# Name of the case: class there, config there, and what it says.
CASES = {
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt2 bare": ("GPT2Model", _GPT2),
    "gpt2 with a head of its own": ("GPT2LMHeadModel", _GPT2 | {"tie_word_embeddings": False}),
    "gpt2 bare, not tied": ("GPT2Model", _GPT2 | {"tie_word_embeddings": False}),
    "gpt2 scaled by layer": ("GPT2LMHeadModel", _GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2 unscaled": ("GPT2LMHeadModel", _GPT2 | {"scale_attn_weights": False, "layer_norm_epsilon": 1e-3}),
    "gpt2 relu": ("GPT2LMHeadModel", _GPT2 | {"activation_function": "relu", "n_inner": 20, "eos_token_id": [3, 4]}),
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5 of unequal stacks": ("T5ForConditionalGeneration", _T5 | {"num_decoder_layers": 3}),
    "t5 1.1": ("T5ForConditionalGeneration", _T5 | _V1_1),
    "t5 bare": ("T5Model", _T5),
    "t5 encoder": ("T5EncoderModel", _T5 | {"feed_forward_proj": "gated-silu"}),
    "mt5": ("MT5ForConditionalGeneration", _T5 | {"feed_forward_proj": "gated-gelu"}),
    "mt5 with a head of its own": ("MT5ForConditionalGeneration", _T5 | _V1_1),
    "marian": ("MarianMTModel", _MARIAN | {"scale_embedding": True, "activation_function": "swish"}),
    "marian of two vocabularies": (
        "MarianMTModel",
        _MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 44},
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twins:
    """One model thrice."""

    folder: Path
    ours: nn.Module
    peer: nn.Module
    exact: nn.Module

    @property
    def has_pair(self) -> bool:
        """Whether an encoder's states are read by a decoder."""
        return (self.peer.config.is_encoder_decoder and hasattr(self.peer, "decoder")) or hasattr(self.peer, "model")


@pytest.fixture(scope="session")
def make_twins(transformers, randomize: Callable, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Twins]:
    made: dict[str, Twins] = {}

    def make(case: str) -> Twins:
        if case not in made:
            made[case] = _made(transformers, randomize, tmp_path_factory.mktemp("twins"), *CASES[case])
        return made[case]

    return make


def _made(transformers, randomize: Callable, folder: Path, name: str, settings: dict) -> Twins:
    there = getattr(transformers, name)
    torch.manual_seed(0)
    model = there(there.config_class(**settings))
    if "5" in name and settings.get("tie_word_embeddings") is False:
        # transformers 5 ties the head in any case, and unties it when it loads another one.
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.shared.weight))
    randomize(model)
    if name.startswith("Marian"):
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(3))
    model.save_pretrained(folder / "theirs")
    # Loaded again, since positions of sines and cosines were drawn anew as well, and are not saved.
    peer = there.from_pretrained(folder / "theirs").eval()
    exact = there.from_pretrained(folder / "theirs", dtype=torch.float64).eval()
    return Twins(folder=folder, ours=load(folder / "theirs"), peer=peer, exact=exact)


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "-"))
def twins(request: pytest.FixtureRequest, make_twins: Callable) -> Twins:
    return make_twins(request.param)


@pytest.fixture
def draw_ids() -> Callable[..., Tensor]:
    """Any words but special ones."""

    def draw(*shape: int, seed: int = 2) -> Tensor:
        return torch.randint(5, 38, shape, generator=torch.Generator().manual_seed(seed))

    return draw
