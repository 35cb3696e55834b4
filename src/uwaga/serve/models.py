"""What the server computes: vectors of texts, and scores of passages for a query, by a reranker or by the similarity of vectors.

Letters: R texts, E width of a vector.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from uwaga.encode.encoder import TextEncoder
from uwaga.encode.preprocessing import TokenizedText, groups
from uwaga.encode.reranker import Reranker, sigmoid
from uwaga.models.tokenizers.tokenizer import Encoding, Tokenizer, encode_prefixes
from uwaga.serve.requests import ApiError, Texts
from uwaga.serve.scheduler import Job

_PIECE = 1 << 16  # characters that are tokenized at a time: 30 MB of memory if each is a token
_PAIRS = object()  # the kind of pairs for a cross-encoder


def check_finite(rows_RE: np.ndarray, texts: Texts, what: str) -> None:
    """Raise ApiError if a text's row has a number that JSON lacks: NaN or infinite."""
    is_finite_R = np.isfinite(rows_RE).all(1)
    if not is_finite_R.all():
        place = texts.place(int(is_finite_R.argmin()))
        instead = "leave it out, or start the server with --dtype float32 or another model"
        raise ApiError(422, f"{place} has a {what} that is NaN or infinite; {instead}", param=texts.key)


class EmbeddingModel:
    """A TextEncoder as the server uses it, and a Reranker if one ranks passages.

    Only `run` calls the models, in the model's thread, since they are not safe to call from two threads. The other methods call their
    tokenizers, in threads that read requests.
    """

    def __init__(self, encoder: TextEncoder, reranker: Reranker | None = None) -> None:
        self._encoder, self._reranker = encoder, reranker
        self.prompts: Mapping[str, str] = encoder.prompts
        self.width, self.has_unit_vectors = encoder.embedding_dim, encoder.has_unit_vectors

    def work(
        self, texts: Texts, limit: int, *, prompt: str | None, dimensions: int | None = None, before: int = 0
    ) -> Job:
        """Return the job that computes vectors. Raises ApiError: a text is empty or too long.

        Args:
            texts: the texts. If they may be truncated, the first `max_tokens` tokens of a longer text are read, or the last ones if the
                model's directory says so.
            limit: the most tokens of all texts.
            prompt: text before every text. None: the model's default.
            dimensions: keep so many first numbers of each vector, scaled to length 1 if the model's vectors are. None: all.
            before: tokens of the request that other texts have.
        """
        encoder, tokenizer, most = self._encoder, self._encoder.tokenizer, self._encoder.max_tokens
        prefix = encoder.config.prompt if prompt is None else prompt

        def tokenize(parts: Sequence[str]) -> Sequence[Encoding]:
            whole = [encoder.whole_text(text, prefix) for text in parts]
            if len(whole[0]) > _PIECE and not encoder.truncates_left:
                return encode_prefixes(tokenizer, whole, max_tokens=most)
            return tokenizer.encode(whole, with_offsets=False)

        kept = slice(-most, None) if encoder.truncates_left else slice(most)
        items, tokens, special = list[TokenizedText](), list[int](), tokenizer.num_special_tokens
        found = _encodings(texts, tokenize, most, limit, extra=len(prefix), special=special, before=before)
        for text, encoding in found:
            items.append(TokenizedText(text, array("l", encoding.ids[kept])))
            tokens.append(len(items[-1]) + special)
        return Job(items, tokens, (prefix, dimensions))

    def ranking(self, query: Texts, passages: Texts, limit: int, most_tokens: int | None) -> list[Job]:
        """Return the jobs that score passages; `scores` reads their rows. Raises ApiError.

        Without a reranker, the prompts "query" and "document" are put before the texts, as encode_query and encode_document do.

        Args:
            query, passages: the texts.
            limit: the most tokens of all texts.
            most_tokens: read only so many first tokens of each passage. None: all.
        """
        reranker = self._reranker
        tokenizer = (reranker or self._encoder).tokenizer
        if most_tokens is not None:
            passages = passages._replace(texts=[_beginning(tokenizer, text, most_tokens) for text in passages.texts])
        if reranker is None:
            first = self.work(query, limit, prompt=self.prompts["query"])
            return [first, self.work(passages, limit, prompt=self.prompts["document"], before=sum(first.tokens))]
        most, (asked,) = reranker.max_tokens, query.texts

        def pairs(texts: Sequence[str]) -> list[Encoding]:
            return reranker.tokenize([(asked, text) for text in texts])

        for _, encoding in _encodings(query, partial(tokenizer.encode, with_offsets=False), most, limit):
            _check_tokens(len(encoding) * len(passages.texts), limit)  # it is tokenized with every passage
        found = _encodings(passages, pairs, most, limit, extra=len(asked), whose=" with the query")
        items, tokens = zip(*(((asked, text), min(len(encoding), most)) for text, encoding in found), strict=True)
        return [Job(items, tokens, _PAIRS)]

    def run(self, items: Sequence[Any], kind: Any) -> np.ndarray:
        """Compute (R, E) float32 vectors in one pass over all tokens, or (R, 1) logits of pairs.

        A vector that is not finite becomes NaN, so that `check_finite` raises for its request and for no other.
        """
        if kind is _PAIRS:
            assert self._reranker is not None
            # In groups, so that long texts are not tokenized together. A pair has the same bits in any batch.
            parts = groups(items, lambda pair: len(pair[0]) + len(pair[1]), max_characters=_PIECE)
            return np.concatenate([self._reranker.logits(part, overflow="truncate") for part in parts])[:, None]
        prompt, dimensions = kind
        normalize = True if dimensions is not None and self.has_unit_vectors else None
        (result,) = self._encoder.stream(
            [items], prompt=prompt, truncate_dim=dimensions, normalize=normalize, tokens_per_batch=1 << 40, skip_invalid=True
        )  # fmt: skip
        rows_RE = np.full((len(items), result.vectors.shape[1]), np.nan, np.float32)
        rows_RE[result.report.document] = result.vectors
        return rows_RE

    def scores(self, rows: Sequence[np.ndarray], query: Texts, passages: Texts) -> list[float]:
        """Compute the scores of passages: the cosine with the query, or the reranker's.

        rows: the rows of each job of `ranking`.

        Raises:
            ApiError: a score or a vector is NaN or infinite.
        """
        if self._reranker is not None:
            check_finite(rows[0], passages, "score")
            logits = rows[0][:, 0]
            return (sigmoid(logits) if self._reranker.has_sigmoid else logits).tolist()
        for vectors, texts in zip(rows, (query, passages), strict=True):
            check_finite(vectors, texts, "vector")
        query_RE, passages_RE = (vectors.astype(np.float64) for vectors in rows)
        # Each row is summed by itself: in a matrix product, its bits might depend on the other passages.
        dots = (passages_RE * query_RE).sum(1)
        norms = np.sqrt(np.square(passages_RE).sum(1)) * np.sqrt(np.square(query_RE).sum())
        return (dots / np.maximum(norms, np.finfo(np.float64).tiny)).tolist()


def _encodings(
    texts: Texts,
    tokenize: Callable[[Sequence[str]], Sequence[Encoding]],
    most: int,
    limit: int,
    *,
    extra: int = 0,
    special: int = 0,
    whose: str = "",
    before: int = 0,
) -> Iterator[tuple[str, Encoding]]:
    """Yield each text and its tokens. Raises ApiError: a text has no tokens or too many.

    Args:
        texts: the texts.
        tokenize: returns the tokens of texts, with what is before them.
        most: the most tokens that the model takes.
        limit: the most tokens of all texts.
        extra: characters that are tokenized with each text.
        special: tokens that the model reads with each text, in addition to its own.
        whose: where the tokens come from, for the message.
        before: tokens of the request that other texts have.
    """
    total = before
    for group in groups(enumerate(texts.texts), lambda item: extra + len(item[1]), max_characters=_PIECE):
        for (number, text), encoding in zip(group, tokenize([text for _, text in group]), strict=True):
            if not len(encoding):
                raise ApiError(422, f"{texts.place(number)} is empty: it has no tokens", param=texts.key)
            if len(encoding) > most and not texts.is_cut:
                message = f"{texts.place(number)} has more than {most:,} tokens{whose}, and the model takes no more"
                raise ApiError(413, f"{message}; send truncate: true to truncate it", param=texts.key)
            total += min(len(encoding), most) + special
            _check_tokens(total, limit)
            yield text, encoding


def _check_tokens(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise ApiError(413, f"the request has more tokens than the limit of {limit:,}", code="too_many_tokens")


def _beginning(tokenizer: Tokenizer, text: str, most: int) -> str:
    """Return the characters of a text's first tokens; the text, if these are white space."""
    (encoding,) = encode_prefixes(tokenizer, [text], max_tokens=most)
    end = encoding.offsets[most - 1][1] if len(encoding) > most else len(text)
    return text[:end] if text[:end].strip() else text
