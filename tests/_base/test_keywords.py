"""Keywords of PyTorch and sentence-transformers: what they call, our function names what it has in their place."""

import inspect
import re

import pytest
from torch import nn

import uwaga
from uwaga import Reranker, TextEncoder
from uwaga._base.keywords import INSTEAD
from uwaga.encode.encoder import Options
from uwaga.nn import MultiHeadAttention


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
        without = {*names} - {*inspect.signature(own).parameters} - {"kwargs", *Options.__annotations__}
        assert without <= {*INSTEAD}, own.__qualname__
