"""unpad: the vectors of sentence-transformers, computed without padding.

Letters: R texts, M width.
"""

import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import factory
from tolerance import assert_as_exact
from torch import nn

transformers = pytest.importorskip("transformers", minversion="5")
peer = pytest.importorskip("sentence_transformers", minversion="6")
import tiny_models  # noqa: E402
from sentence_transformers.base.modules.transformer import Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import CNN, Pooling  # noqa: E402
from tiny_models import implementation_of, small  # noqa: E402
from tiny_tokenizer import read_as_it_is  # noqa: E402
from tokenizers.processors import TemplateProcessing  # noqa: E402

import uwaga  # noqa: E402
from uwaga._base.keywords import INSTEAD  # noqa: E402
from uwaga.encode.encoder import Options  # noqa: E402
from uwaga.integrations import sentence_transformers  # noqa: E402
from uwaga.nn import MultiHeadAttention  # noqa: E402

unpad = sentence_transformers.unpad

TEXTS = ["the cat sat on the mat .", "a dog", "", "then it ran away from the house , unbelievable", "cat", "it ran ."]
_WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES = {
    "bert": _WIDE,
    "roberta": _WIDE | {"max_position_embeddings": 40},
    "xlm-roberta": _WIDE | {"max_position_embeddings": 40},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "modernbert": _WIDE | {"local_attention": 4, "global_attn_every_n_layers": 2},
    "mpnet": _WIDE,
    "minimax": small("minimax"),
    "recurrent_gemma": small("recurrent_gemma"),
}


@factory
def make(
    write_model: Callable[..., Path], tmp_path: Path, /, family: str, pooling: str = "mean", **options: object
) -> nn.Module:
    """A random SentenceTransformer of a family."""
    folder = write_model(tmp_path / family, positions=32)
    tiny_models.make(family, FAMILIES[family], transformers.AutoModel).save_pretrained(folder)
    read_as_it_is(folder)
    transformer = Transformer(str(folder), **options)
    width = transformer.get_embedding_dimension()
    return peer.SentenceTransformer(modules=[transformer, Pooling(width, pooling_mode=pooling)], device="cpu").eval()


def agrees(model: nn.Module, texts: list[str], **options: object) -> None:
    """The vectors lie no farther from float64 than twice what the model's own do, and a unit in the last place."""
    ref = model.encode(texts, **options)
    exact = copy.deepcopy(model).double()
    assert unpad(model) is model
    ours = model.encode(texts, **options)
    assert (ours.shape, ours.dtype) == (ref.shape, ref.dtype)
    assert_as_exact(*map(torch.from_numpy, (ours, ref)), lambda: exact.encode(texts, convert_to_tensor=True, **options))


PADDED = ["a dog [PAD] ran [PAD] [PAD] away", "[PAD] cat", *TEXTS]  # RoBERTa does not count it, wherever it is
CASES = [("bert", 1, TEXTS), *[(family, 4, TEXTS) for family in ("roberta", "xlm-roberta", "distilbert", "modernbert")]]


@pytest.mark.parametrize(
    ("model", "batch_size", "texts"),
    [
        *CASES,
        *[(name, 32, TEXTS) for name in ("bert", "bert lasttoken")],
        *[(family, 4, PADDED) for family in ("bert", "roberta")],
    ],
)
def test_the_vectors_of_a_model(model: str, batch_size: int, texts: list[str], make: Callable) -> None:
    agrees(make(*model.split()), texts, batch_size=batch_size)


@pytest.mark.parametrize("family", ["minimax", "recurrent_gemma"])
def test_layers_that_mix_tokens_outside_of_attention_are_not_packed(family: str, make: Callable) -> None:
    model = make(family)
    theirs = model.encode(TEXTS)
    modes = [module.training for module in model.train().modules()]
    assert [module.training for module in unpad(model).modules()] == modes
    assert not model[0].can_flatten_inputs
    np.testing.assert_allclose(model.eval().encode(TEXTS), theirs, rtol=1e-3, atol=1e-6 * np.abs(theirs).max())


def test_a_text_of_no_tokens(make: Callable) -> None:
    """It keeps its place among the vectors: a packed row would leave it out."""
    model = make("bert")
    model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    theirs = model.encode(TEXTS)
    np.testing.assert_allclose(unpad(model).encode(TEXTS), theirs, rtol=1e-4, atol=1e-5)
    assert model[0].can_flatten_inputs


def test_vectors_of_tokens(make: Callable) -> None:
    model = make("distilbert")
    theirs = model.encode(TEXTS, output_value="token_embeddings", batch_size=4)
    everything = model.encode(TEXTS, output_value=None, batch_size=4)
    unpad(unpad(model))
    ours = model.encode(TEXTS, output_value="token_embeddings", batch_size=4)
    assert [x.shape for x in ours] == [x.shape for x in theirs]
    for value, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    for value, expected in zip(model.encode(TEXTS, output_value=None, batch_size=4), everything, strict=True):
        torch.testing.assert_close(value["sentence_embedding"], expected["sentence_embedding"], rtol=1e-4, atol=1e-5)
        assert value["attention_mask"].sum() == expected["attention_mask"].sum()


def test_texts_of_a_batch_are_one_row(make: Callable) -> None:
    model = unpad(make("bert"))
    rows = []
    model[0].model.embeddings.word_embeddings.register_forward_hook(lambda layer, ids, _: rows.append(ids[0].shape))
    model.encode(TEXTS)
    tokens = sum(len(model.tokenizer(text, truncation=True)["input_ids"]) for text in TEXTS)
    assert rows == [(1, tokens)]
    assert implementation_of(model[0].model) == "uwaga"


def test_packing_can_be_taken_back(make: Callable) -> None:
    """Then padding is left out between the attentions alone."""
    model = make("bert")
    theirs = model.encode(TEXTS)
    unpad(model)[0].unpad_inputs = False
    assert not model[0].can_flatten_inputs
    np.testing.assert_allclose(model.encode(TEXTS), theirs, rtol=1e-4, atol=1e-5)


def test_a_cross_encoder(write_model: Callable[..., Path], tmp_path: Path) -> None:
    """Its pairs stay padded, and its head reads the first state of each."""
    folder = write_model(tmp_path / "cross", positions=32)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=64, pad_token_id=0, num_labels=1, **_WIDE)
    model = transformers.BertForSequenceClassification(config)
    for x in model.parameters():
        nn.init.normal_(x, 0.0, 0.3)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)
    encoder = peer.CrossEncoder(str(folder), device="cpu")
    pairs = [("the cat", "sat on the mat"), ("a dog", "ran"), ("it", TEXTS[3])]
    theirs, ours = encoder.predict(pairs), unpad(encoder).predict(pairs)
    assert implementation_of(encoder[0].model) == "uwaga"
    assert not encoder[0].can_flatten_inputs
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


PAIRS = [("a cat", "a dog"), ("the cat sat", "then it ran away from the house"), ("it", TEXTS[3])]


def of_pairs(model: nn.Module) -> nn.Module:
    """Whose second texts have another token type."""
    model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return model


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_pairs_keep_their_token_types(family: str, make: Callable) -> None:
    model = of_pairs(make(family))
    agrees(model, PAIRS)
    assert model[0].can_flatten_inputs


def test_what_the_tokenizer_gives_for_no_token_is_not_packed(make: Callable) -> None:
    model = make("bert")
    theirs = unpad(copy.deepcopy(model)).encode(TEXTS)
    collate = unpad(model)[0].data_collator
    model[0].data_collator = lambda texts: collate([text | {"length": len(text["input_ids"])} for text in texts])
    assert "attention_mask" in model[0].preprocess(["a cat", "it"])
    np.testing.assert_allclose(model.encode(TEXTS), theirs, rtol=1e-4, atol=1e-5)


def test_a_module_that_gives_the_output_of_the_pooler(make: Callable) -> None:
    """It is of the first token of a row, which has several texts where they are packed."""
    settings = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
    transformer = make("bert", modality_config=settings, module_output_name="sentence_embedding")[0]
    model = peer.SentenceTransformer(modules=[transformer], device="cpu").eval()
    agrees(model, TEXTS)
    assert not model[0].can_flatten_inputs
    assert implementation_of(model[0].model) == "uwaga"


def test_modules_that_cannot_read_a_packed_row(make: Callable) -> None:
    transformer, pooling = make("bert")
    torch.manual_seed(1)
    width = transformer.get_embedding_dimension()
    between = CNN(width, out_channels=width // 2, kernel_sizes=[1, 3])
    model = peer.SentenceTransformer(modules=[transformer, between, pooling], device="cpu").eval()
    agrees(model, ["the cat sat on the mat .", "then it ran away from a dog", "a dog and the cat sat on"], batch_size=1)
    assert not model[0].can_flatten_inputs


def test_every_keyword_of_theirs_has_its_answer() -> None:
    """As PyTorch and sentence-transformers are installed here: a new keyword wants an answer, too."""
    said = nn.functional.scaled_dot_product_attention.__doc__ or ""
    keywords = {
        uwaga.attention: re.findall(r"(\w+)=", said[: said.index("->")]),
        MultiHeadAttention.forward: inspect.signature(nn.MultiheadAttention.forward).parameters,
        uwaga.TextEncoder.encode: inspect.signature(peer.SentenceTransformer.encode).parameters,
        uwaga.Reranker.rank: inspect.signature(peer.CrossEncoder.rank).parameters,
        uwaga.Reranker.scores: inspect.signature(peer.CrossEncoder.predict).parameters,
    }
    for method, names in keywords.items():
        without = {*names} - {*inspect.signature(method).parameters} - {"kwargs", *Options.__annotations__}
        assert without <= {*INSTEAD}, method.__qualname__


def test_what_is_refused_is_not_changed(make: Callable) -> None:
    good, bad = make("bert"), make("mpnet")
    both = nn.ModuleList([good, bad])
    with pytest.raises(ValueError, match="MPNetModel"):
        unpad(both)
    assert implementation_of(good[0].model) != "uwaga"
    assert not good[0].can_flatten_inputs
