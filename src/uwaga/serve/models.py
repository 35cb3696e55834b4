"""What the server computes: vectors of texts, and scores of passages for a query, by a model or by the similarity of vectors.

Letters: R texts, E width of a vector.
"""

from array import array
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from uwaga.models.text.encoder import TextEncoder
from uwaga.models.text.preprocessing import TokenizedText
from uwaga.models.text.reranker import Reranker, sigmoid
from uwaga.models.text.token_text import join_tokens, token_text
from uwaga.serve.requests import ApiError
from uwaga.serve.scheduler import Item

# The names that sentence-transformers looks for in encode_query and encode_document.
_PAIRS = object()  # the kind of pairs for a cross-encoder


def check_finite(rows_RE: np.ndarray, name: str, what: str) -> None:
    """Raises ApiError: a row, of a text of this name in the request, has an entry that is NaN or infinite. JSON has no such numbers."""
    is_finite_R = np.isfinite(rows_RE).all(1)
    if not is_finite_R.all():
        place = name if len(rows_RE) == 1 else f"{name}[{is_finite_R.argmin()}]"
        instead = "leave it out, or start the server with --dtype float32 or another model"
        raise ApiError(422, f"{place} has a {what} that is NaN or infinite; {instead}", param=name)


class Work(NamedTuple):
    """Items of one kind, for the scheduler."""

    items: Sequence[Item]
    tokens: Sequence[int]  # of each item, special ones included
    kind: Hashable


class EmbeddingModel:
    """A TextEncoder as the server uses it: `work` and `text_of` in threads that read requests, `run` in the model's thread.

    Only `run` calls the encoder itself, which is not safe to call from two threads; the others call its tokenizer, which is.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self.width = encoder.embedding_dim
        self.has_unit_vectors = encoder.has_unit_vectors
        self.prompts: Mapping[str, str] = encoder.prompts

    @property
    def max_tokens(self) -> int:
        """The most tokens of a text, special ones not counted."""
        return self._encoder.max_tokens

    def work(self, texts: Sequence[str], *, prompt: str | None, truncate: bool, name: str = "input") -> Work:
        """Texts with the number of their tokens. Raises ApiError, which names the text: it is empty or too long.

        Args:
            prompt: before every text; None: the model's default.
            truncate: read the first `max_tokens` tokens of a longer text, or the last ones if the model's directory says so.
            name: of the texts in the request, for errors.
        """
        prompt = self._encoder.config.prompt if prompt is None else prompt
        tokenizer, items = self._encoder.tokenizer, list[TokenizedText]()
        encodings = tokenizer.encode([self._encoder.whole_text(text, prompt) for text in texts], with_offsets=False)
        kept = slice(-self.max_tokens, None) if self._encoder.truncates_left else slice(self.max_tokens)
        for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            place = name if len(texts) == 1 else f"{name}[{number}]"
            if not len(encoding) or not text or text.isspace():
                raise ApiError(422, f"{place} is empty: it has no tokens", param=name)
            if len(encoding) > self.max_tokens and not truncate:
                counts = f"has {len(encoding):,} tokens, and the model takes at most {self.max_tokens:,}"
                raise ApiError(413, f"{place} {counts}; send truncate: true to embed its beginning", param=name)
            items.append(TokenizedText(text, array("l", encoding.ids[kept])))
        return Work(items, [len(item) + tokenizer.num_special_tokens for item in items], prompt)

    def text_of(self, ids: Sequence[int], place: str) -> str:
        """The text of which the model's own tokenizer makes these ids, given with its special tokens or without them.

        Raises ApiError: there is none. So ids of another tokenizer never become the vector of something else.
        """
        tokenizer = self._encoder.tokenizer
        before, behind = tokenizer.prefix_ids, tokenizer.suffix_ids
        own = list(ids)
        if before + behind and own[: len(before)] == before and own[len(own) - len(behind) :] == behind:
            own = own[len(before) : len(own) - len(behind)]
        if own and max(own) < tokenizer.vocab_size:
            tokens = [tokenizer.backend.id_to_token(number) or "" for number in own]
            # By the tokenizer's own decoder; not every file has one.
            texts = [tokenizer.decode(own, skip_special_tokens=False), join_tokens(token_text(tokens), 0, len(own))]
            for text, again in zip(texts, tokenizer.encode(texts, with_offsets=False), strict=True):
                if again.ids == own:
                    return text
        raise ApiError(
            422,
            f"{place} is not what this model's tokenizer makes of a text: send strings, or ids of its own tokenizer "
            "(a client that tokenizes for OpenAI's models sends others; LangChain's has check_embedding_ctx_length=False)",
            param="input",
        )

    def run(self, items: Sequence[TokenizedText], prompt: str) -> np.ndarray:
        """(R, E) float32, in one pass over all tokens, those that `work` found; NaN where a vector is not finite, which `check_finite` tells
        those who asked for it and no others."""
        (result,) = self._encoder.encode_groups([items], prompt=prompt, tokens_per_batch=1 << 40, skip_invalid=True)
        rows_RE = np.full((len(items), self.width), np.nan, np.float32)
        rows_RE[result.report.document] = result.vectors
        return rows_RE

    def shortened(self, vectors_RE: np.ndarray, dimensions: int | None) -> np.ndarray:
        """The first numbers of each vector, to length 1 again where the model's vectors have that."""
        if dimensions is None:
            return vectors_RE
        first = vectors_RE[:, :dimensions]
        if not self.has_unit_vectors:
            return first
        norms = np.sqrt(np.square(first.astype(np.float64)).sum(1, keepdims=True))
        return (first / np.maximum(norms, np.finfo(np.float64).tiny)).astype(np.float32)


class Ranker(Protocol):
    """Scores passages for a query."""

    def run(self, items: Sequence[Item], kind: Any) -> np.ndarray:
        """Compute items of any kind that the server has, in the model's thread."""
        ...

    def works(self, query: str, passages: Sequence[str], *, truncate: bool) -> list[Work]:
        """What must be computed. Raises ApiError."""
        ...

    def scores(self, rows: Sequence[np.ndarray], *, raw: bool) -> list[float]:
        """For each passage a number, from the rows of each work; higher is better. raw: before any sigmoid. Raises ApiError: one is NaN or
        infinite."""
        ...


class SimilarityRanker:
    """Ranks by the cosine of the vectors of query and passage: what an embedding model can say. The prompts "query" and
    "document" are put before them, as encode_query and encode_document do."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model
        self._query, self._passage = model.prompts["query"], model.prompts["document"]

    def run(self, items: Sequence[Item], kind: Any) -> np.ndarray:
        return self._model.run(items, kind)

    def works(self, query: str, passages: Sequence[str], *, truncate: bool) -> list[Work]:
        return [
            self._model.work([query], prompt=self._query, truncate=truncate, name="query"),
            self._model.work(passages, prompt=self._passage, truncate=truncate, name="documents"),
        ]

    def scores(self, rows: Sequence[np.ndarray], *, raw: bool) -> list[float]:
        check_finite(rows[0], "query", "vector")
        check_finite(rows[1], "documents", "vector")
        query, passages = (each.astype(np.float64) for each in rows)
        # A row is summed by itself, so that its score does not depend on the other passages, as that of a matrix product might.
        dots = (passages * query).sum(1)
        norms = np.sqrt(np.square(passages).sum(1)) * np.sqrt(np.square(query).sum())
        return (dots / np.maximum(norms, np.finfo(np.float64).tiny)).tolist()


class CrossEncoderRanker:
    """Ranks by a model that reads query and passage together. Beside it, the vectors of `model` are computed."""

    def __init__(self, model: EmbeddingModel, reranker: Reranker) -> None:
        self._model, self._reranker = model, reranker

    def run(self, items: Sequence[Item], kind: Any) -> np.ndarray:
        if kind is not _PAIRS:
            return self._model.run(items, kind)
        return self._reranker.logits(items, overflow="truncate")[:, None]

    def works(self, query: str, passages: Sequence[str], *, truncate: bool) -> list[Work]:
        pairs, most = [(query, passage) for passage in passages], self._reranker.max_tokens
        try:
            lengths = [len(each) for each in self._reranker.tokenize(pairs)]
        except ValueError as error:  # of an empty text
            raise ApiError(422, str(error).removeprefix("Reranker: "), param="documents") from error
        for number, length in enumerate(lengths):
            if length > most and not truncate:
                counts = f"has {length:,} tokens with the query, and the model takes at most {most:,}"
                raise ApiError(
                    413, f"documents[{number}] {counts}; send truncate: true to read its beginning", param="documents"
                )
        return [Work(pairs, [min(length, most) for length in lengths], _PAIRS)]

    def scores(self, rows: Sequence[np.ndarray], *, raw: bool) -> list[float]:
        check_finite(rows[0], "documents", "score")
        logits = rows[0][:, 0]
        return (sigmoid(logits) if self._reranker.has_sigmoid and not raw else logits).tolist()
