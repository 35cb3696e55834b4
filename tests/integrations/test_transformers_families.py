"""Every family of transformers that offers a choice of attention, built small: what it gives with attn_implementation="uwaga"
is what it gives with eager attention, padded on either side, with gradients, compiled, and generating with a static cache.

Letters: B batch, N tokens of a sequence.
"""

import inspect
from itertools import product

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402

register_with_transformers()

ENCODERS = ["albert", "bert", "distilbert", "electra", "esm", "modernbert", "roberta"]
DECODERS = [
    "biogpt", "cohere", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "granite",
    "llama", "mistral", "mixtral", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen3", "stablelm", "starcoder2",
]  # fmt: skip
PAIRS = ["bart", "m2m_100", "marian", "mt5", "pegasus", "t5"]
# One of each kind of position, mask, norm and number of key heads; the other families are built of the same parts.
IN_GATE = [
    "bart", "bert", "cohere", "distilbert", "gemma2", "gpt2", "gpt_oss", "llama", "m2m_100", "mixtral", "modernbert", "opt", "phi", "t5",
]  # fmt: skip
COMPILED = ["bert", "distilbert", "gemma2", "gpt2", "gpt_oss", "mistral", "mixtral", "opt", "t5"]
BATCH, LENGTH = 3, 7
IDS = tiny.tokens(BATCH, LENGTH)
RIGHT = (torch.arange(LENGTH) < torch.tensor([6, 7, 4])[:, None]).long()
MASKS = {"none": torch.ones_like(RIGHT), "right": RIGHT, "left": RIGHT.flip(1)}
MAKERS = {
    **dict.fromkeys(ENCODERS, transformers.AutoModel),
    **dict.fromkeys(DECODERS, transformers.AutoModelForCausalLM),
    **dict.fromkeys(PAIRS, transformers.AutoModelForSeq2SeqLM),
}


def made(family: str, **more: int) -> nn.Module:
    return tiny.make(family, tiny.small(family), MAKERS[family], **more)


def inputs(model: nn.Module, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Positions as `generate` counts them, where the model takes any, and for a pair what its decoder reads."""
    result = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        result["decoder_input_ids"] = IDS  # as long as the encoder's ids, whose padding says nothing of them
    elif "position_ids" in inspect.signature(model.forward).parameters:
        result["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return result


def results(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """What the model gives for tokens that are no padding."""
    result = model(**inputs(model, ids, mask), use_cache=False)[0]
    return result if model.config.is_encoder_decoder else result[mask.bool()]


def gradients(model: nn.Module, losses: list[Tensor]) -> Tensor:
    model.zero_grad()
    torch.stack(losses).sum().backward()
    return torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])


def batches(family: str, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What is right of a decoder is each sequence alone: a row of float64 that sees nothing is NaN in eager attention."""
    if family not in DECODERS:
        return [(IDS, mask)]
    return [(ids, torch.ones_like(ids)) for ids in tiny.alone(IDS, mask)]


@pytest.mark.slow
@pytest.mark.gate(only=lambda family, side: family in IN_GATE and side == ("left" if family in DECODERS else "right"))
@pytest.mark.parametrize(
    ("family", "side"),
    list(product(MAKERS, MASKS)),
)
@torch.no_grad()
def test_padding(family: str, side: str) -> None:
    model, mask = made(family), MASKS[side]
    oracle = tiny.oracle(model)

    def exact() -> Tensor:
        return torch.cat([results(oracle, *batch) for batch in batches(family, mask)])

    tiny.agrees(model, lambda model: results(model, IDS, mask), exact)


@pytest.mark.gate(only=lambda family: family in ("bert", "llama", "t5", "gemma2"))
@pytest.mark.parametrize("family", MAKERS)
def test_gradients(family: str) -> None:
    """On both sides at once: of one batch alone, the rounding of two computations differs more by chance."""
    model = made(family)
    masks = [MASKS["right"], MASKS["left"]]
    oracle = tiny.oracle(model)

    def exact() -> Tensor:
        losses = [results(oracle, *batch).square().sum() for mask in masks for batch in batches(family, mask)]
        return gradients(oracle, losses)

    tiny.agrees(model, lambda model: gradients(model, [results(model, IDS, m).square().sum() for m in masks]), exact)


@pytest.mark.slow
@pytest.mark.gate(only=lambda family: family == "bert")
@pytest.mark.parametrize("family", COMPILED)
@torch.no_grad()
def test_compiled(family: str) -> None:
    """As one graph, of a layer: more of them take longer and say no more."""
    model = made(family, **dict.fromkeys(tiny.small(family).keys() & tiny.LAYERS, 1))
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")  # the other one makes no graph
    model.set_attn_implementation("uwaga")
    plain = results(model, IDS, RIGHT)
    torch.compiler.reset()
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    torch.testing.assert_close(results(model, IDS, RIGHT), plain)


@pytest.mark.stress
@pytest.mark.parametrize("compiled", [(0,), (1,), (0, 1, 2)])
@pytest.mark.parametrize("family", ["bert", "llama"])
@torch.no_grad()
def test_layers_compiled_one_by_one(family: str, compiled: tuple[int, ...]) -> None:
    """Next to layers that are not, and for batches that come in turn."""
    model = tiny.make(family, (tiny.ENCODERS | tiny.DECODERS)[family], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    plain = [results(model, IDS, mask) for mask in MASKS.values()]
    torch.compiler.reset()
    for index in compiled:
        (model.layers if family == "llama" else model.encoder.layer)[index].compile(backend="aot_eager")
    torch.testing.assert_close([results(model, IDS, mask) for mask in MASKS.values()], plain)


@pytest.mark.gate(only=lambda family: family in ("mpnet", "bloom", "gptj"))
@pytest.mark.parametrize("family", ["mpnet", "deberta", "deberta-v2", "bloom", "falcon", "codegen", "gptj", "mpt"])
def test_families_that_compute_attention_by_themselves(family: str) -> None:
    rotary = {"rotary_dim": 4} if family in ("codegen", "gptj") else {}
    config = transformers.AutoConfig.for_model(family, **tiny.small(family) | {"vocab_size": 64} | rotary)
    model = transformers.AutoModel.from_config(config)
    if tiny.offers_a_choice(model):  # CodeGen and GPT-J since transformers 5.24
        tiny.agrees(model, lambda model: model(IDS)[0].detach())
        return
    with pytest.raises(ValueError, match="computes attention by itself"):
        transformers.AutoModel.from_config(config, attn_implementation="uwaga")
    model.set_attn_implementation("eager")


_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8,
    "patch_size": 2,
}  # fmt: skip
_TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
_SPEECH = {"conv_dim": [8, 8], "conv_stride": [2, 2], "conv_kernel": [3, 3], "num_conv_pos_embeddings": 4}
OTHERS: dict[str, tuple[dict, dict[str, Tensor]]] = {
    "vit": (_VISION, {"pixel_values": torch.randn(2, 3, 8, 8)}),
    "deit": (_VISION, {"pixel_values": torch.randn(2, 3, 8, 8)}),
    "dinov2": (_VISION, {"pixel_values": torch.randn(2, 3, 8, 8)}),
    "clip": (
        {"text_config": _TEXT | {"eos_token_id": 2}, "vision_config": _VISION, "projection_dim": 16},
        {"pixel_values": torch.randn(3, 3, 8, 8), "input_ids": IDS * RIGHT, "attention_mask": RIGHT},
    ),
    "whisper": (
        tiny.PAIRS["bart"] | {"num_mel_bins": 8, "max_source_positions": 8, "vocab_size": 64, "pad_token_id": 0},
        {"input_features": torch.randn(3, 8, 16), "decoder_input_ids": IDS},
    ),
    "wav2vec2": (
        _TEXT | _SPEECH | {"num_feat_extract_layers": 2, "num_conv_pos_embedding_groups": 4},
        {
            "input_values": torch.randn(3, 40),
            "attention_mask": (torch.arange(40) < torch.tensor([[40], [31], [24]])).long(),
        },
    ),
}


@pytest.mark.parametrize("family", OTHERS)
def test_pictures_and_speech(family: str) -> None:
    options, arguments = OTHERS[family]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **options)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.2)

    def run(model: nn.Module) -> Tensor:
        cast = {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in arguments.items()}
        states = model(**cast)[0]
        if family == "wav2vec2":  # what it computes at padding is undefined
            lengths = arguments["attention_mask"].sum(1)
            for _ in range(2):  # convolutions of three numbers, in steps of two
                lengths = (lengths - 3) // 2 + 1
            states = states[torch.arange(states.shape[1]) < lengths[:, None]]
        return gradients(model, [states.square().mean()])

    tiny.agrees(model, run)
