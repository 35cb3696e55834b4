"""Calls of models, encoders and rerankers that raise."""

from uwaga import Reranker, TextEncoder
from uwaga.encode import BatchEncoder

CALLS = {
    "TextEncoder: one string": lambda encoder: encoder.encode("text"),
    "TextEncoder: no texts": lambda encoder: encoder.encode(None),
    "TextEncoder: a number in place of texts": lambda encoder: encoder.encode(5, spans="line"),
    "TextEncoder: a list in place of the name of a prompt": lambda encoder: encoder.encode(["a"], prompt_name=[1]),
    "TextEncoder.similarity: a string": lambda encoder: encoder.similarity("a", "b"),
    "TextEncoder.load: no path": lambda: TextEncoder.load(None),
    "TextEncoder.load: dtype by name": lambda model: TextEncoder.load(model, dtype="bfloat16"),
    "TextEncoder.load: device of sentence-transformers": lambda model: TextEncoder.load(model, device="cuda"),
    "TextEncoder.encode: batch_size of sentence-transformers": lambda encoder: encoder.encode(["a"], batch_size=8),
    "TextEncoder.encode: convert_to_tensor of sentence-transformers": lambda encoder: encoder.encode(["a"], convert_to_tensor=True),
    "TextEncoder.encode_query: show_progress_bar of sentence-transformers": lambda encoder: encoder.encode_query(["a"], show_progress_bar=True),
    "TextEncoder.stream: normalize_embeddings of sentence-transformers": lambda encoder: list(encoder.stream(["a"], normalize_embeddings=True)),
    "TextEncoder.encode with spans: batch_size of sentence-transformers": lambda encoder: encoder.encode(["a"], spans="line", batch_size=8),
    "TextEncoder.encode of tokens: batch_size of sentence-transformers": lambda encoder: encoder.encode(["a"], output="tokens", batch_size=8),
    "TextEncoder.stream of tokens: truncate_dim": lambda encoder: list(encoder.stream([["a"]], output="tokens", truncate_dim=3)),
    "BatchEncoder: no column": lambda model: BatchEncoder(model, text="body")({"text": ["it"]}),
    "BatchEncoder: dtype": lambda model: BatchEncoder(model, dtype="float33")({"text": ["it"]}),
    "Reranker: no passages": lambda reranker: reranker.rank("a", None),
    "Reranker: top that is a word": lambda reranker: reranker.rank("a", ["b"], top="x"),
    "Reranker: a string in place of a pair": lambda reranker: reranker.scores(["ab"]),
    "Reranker: a number in place of pairs": lambda reranker: reranker.scores(5),
    "Reranker.rank: top_k of sentence-transformers": lambda reranker: reranker.rank("a", ["b"], top_k=1),
    "Reranker.scores: batch_size of sentence-transformers": lambda reranker: reranker.scores([("a", "b")], batch_size=8),
    "Reranker.load: max_length of sentence-transformers": lambda model: Reranker.load(model, max_length=8),
}  # fmt: skip
