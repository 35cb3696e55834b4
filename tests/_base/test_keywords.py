"""Keywords of PyTorch and sentence-transformers: what they call, our function names what it has in their place."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import uwaga
from uwaga import AttentionMap, Reranker, TextEncoder
from uwaga._base.keywords import INSTEAD
from uwaga.nn import MultiHeadAttention

x = torch.eye(3)
SAID: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (uwaga.attention, {"is_causal": True}, "attention: is_causal is no option of it; give mask=uwaga.Causal(start=0)"),
    (uwaga.attention, {"attn_mask": None}, "attention: attn_mask is no option of it; give mask= if it is bool, or bias= if it is floating"),
    (uwaga.attend, {"dropout_p": 0.1}, "attend: dropout_p is no option of it; give dropout="),
    (uwaga.explain, {"enable_gqa": True}, "explain: enable_gqa is no option of it; leave it out, since it follows from the shapes"),
    (lambda q, k, v, **o: AttentionMap(q, k, **o), {"is_causal": True}, "AttentionMap: is_causal is no option of it; give mask=uwaga.Causal(start=0)"),
    (MultiHeadAttention(3, 1).forward, {"need_weights": True}, "MultiHeadAttention: need_weights is no option of it; leave it out, since uwaga.watch(model) records the maps"),
    (lambda *_, **o: MultiHeadAttention(3, 1, **o), {"kdim": 3}, "MultiHeadAttention: kdim is no option of it; give key_dim="),
    (uwaga.attention, {"casual": True}, "attention: casual is no option of it; its options are mask, bias, scale, normalize, softcap, sinks, dropout, impl"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "options", "message"), SAID)
def test_keywords_of_pytorch(function: Callable[..., object], options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(x, x, x, **options)
    assert str(caught.value) == message


def test_keywords_of_sentence_transformers(write_model, write_reranker, tmp_path) -> None:
    folder = write_model(tmp_path / "model")
    encoder, reranker = TextEncoder.load(folder), Reranker.load(write_reranker())
    batch = "batch_size is no option of it; give tokens_per_batch=, the tokens that the model reads at a time"
    array = "is no option of it; leave it out, since the result is a NumPy array, which torch.from_numpy takes"
    said = [
        (lambda: TextEncoder.load(folder, device="cuda"), "TextEncoder.load: device is no option of it; leave it out, since model.to(device) moves a model, such as encoder.model"),
        (lambda: encoder.encode(["a"], batch_size=8), f"TextEncoder.encode: {batch}"),
        (lambda: encoder.encode(["a"], convert_to_tensor=True), f"TextEncoder.encode: convert_to_tensor {array}"),
        (lambda: encoder.encode_query(["a"], show_progress_bar=True), "TextEncoder.encode: show_progress_bar is no option of it; give progress="),
        (lambda: list(encoder.encode_stream(["a"], normalize_embeddings=True)), "TextEncoder.encode: normalize_embeddings is no option of it; give normalize="),
        (lambda: encoder.encode_spans(["a"], "line", batch_size=8), f"TextEncoder.encode: {batch}"),
        (lambda: encoder.encode_tokens(["a"], batch_size=8), f"TextEncoder.encode_tokens: {batch}"),
        (lambda: list(encoder.encode_token_groups([["a"]], truncate_dim=3)), "TextEncoder.encode_tokens: truncate_dim is no option of it; its options are task, overflow, overlap, tokens_per_batch, normalize, prompt, prompt_name, progress"),
        (lambda: reranker.rank("a", ["b"], top_k=1), "Reranker.rank: top_k is no option of it; give top="),
        (lambda: reranker.scores([("a", "b")], batch_size=8), "Reranker.scores: batch_size is no option of it; leave it out, since pairs are packed by their tokens"),
        (lambda: Reranker.load(folder, max_length=8), "Reranker.load: max_length is no option of it; leave it out, since the model's files say it"),
    ]  # fmt: skip
    for call, message in said:
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == message


def test_every_keyword_of_theirs_has_its_answer() -> None:
    """As they are installed here: a new one wants an answer, too."""
    st = pytest.importorskip("sentence_transformers")
    said = nn.functional.scaled_dot_product_attention.__doc__ or ""
    theirs = {
        uwaga.attention: re.findall(r"(\w+)=", said[: said.index("->")]),
        MultiHeadAttention.forward: inspect.signature(nn.MultiheadAttention.forward).parameters,
        TextEncoder.encode: inspect.signature(st.SentenceTransformer.encode).parameters,
        Reranker.rank: inspect.signature(st.CrossEncoder.rank).parameters,
        Reranker.scores: inspect.signature(st.CrossEncoder.predict).parameters,
    }
    for own, names in theirs.items():
        without = {*names} - {*inspect.signature(own).parameters} - {"kwargs", "prompt", "prompt_name"}
        assert without <= {*INSTEAD}, own.__qualname__
