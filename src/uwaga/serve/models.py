"""What the server computes: vectors of texts, and scores of passages for a query, by a reranker or by the similarity of vectors.

Letters: R texts, E width of a vector.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np

from uwaga.encode.encoder import TextEncoder
from uwaga.encode.preprocessing import TokenizedText, groups
from uwaga.encode.reranker import Reranker, sigmoid
from uwaga.models.tokenizers.token_text import join_tokens, token_text
from uwaga.models.tokenizers.tokenizer import Encoding, Tokenizer, prefix_end
from uwaga.serve.requests import ApiError, Limits, Texts
from uwaga.serve.scheduler import Job

_PIECE = 1 << 16  # characters that are tokenized at a time: 30 MB of memory if each is a token
_AT_CUT = 256  # tokens that a piece may have more than its part of the whole text, since the cut may divide a word
_PAIRS = object()  # the kind of pairs for a cross-encoder


def check_finite(rows_RE: np.ndarray, texts: Texts, what: str) -> None:
    """Raise ApiError if a text's row has a number that JSON lacks: NaN or infinite."""
    is_finite_R = np.isfinite(rows_RE).all(1)
    if not is_finite_R.all():
        place = texts.places[is_finite_R.argmin()]
        instead = "leave it out, or start the server with --dtype float32 or another model"
        raise ApiError(422, f"{place} has a {what} that is NaN or infinite; {instead}", param=texts.key)


class TokenBudget:
    """The tokens that the model reads for a request, special tokens included, and their limit."""

    def __init__(self, limit: int) -> None:
        self.limit, self.spent = limit, 0

    def spend(self, tokens: int) -> None:
        """Add tokens to the request. Raises ApiError: they exceed the limit."""
        self.check(tokens)
        self.spent += tokens

    def check(self, tokens: int) -> None:
        """Raise ApiError if so many more tokens exceed the limit."""
        if self.spent + tokens > self.limit:
            message = f"the request has more tokens than the limit of {self.limit:,}"
            raise ApiError(413, message, code="too_many_tokens")


class EmbeddingModel:
    """A TextEncoder as the server uses it, and a Reranker if one ranks passages.

    Only `run` calls the models, in the model's thread, since they are not safe to call from two threads. The other methods call their
    tokenizers, in threads that read requests.
    """

    def __init__(self, encoder: TextEncoder, reranker: Reranker | None = None) -> None:
        self._encoder, self._reranker = encoder, reranker
        self.tokenizer = encoder.tokenizer
        self.prompts: Mapping[str, str] = encoder.prompts
        self.truncates_left, self.ranks_left = encoder.truncates_left, (reranker or encoder).truncates_left
        self.width, self.has_unit_vectors = encoder.embedding_dim, encoder.has_unit_vectors
        self.max_tokens = encoder.max_tokens  # of a text, without special tokens

    def work(self, texts: Texts, *, prompt: str | None, budget: TokenBudget, normalize: bool | None = None) -> Job:
        """Return the job that computes vectors. Raises ApiError: a text is empty or too long.

        Args:
            texts: the texts. If they may be truncated, the first `max_tokens` tokens of a longer text are read, or the last ones if the
                model's directory says so.
            prompt: text before every text. None: the model's default.
            budget: the tokens of the request.
            normalize: as `TextEncoder.encode`.
        """
        prefix = self._encoder.config.prompt if prompt is None else prompt
        most, tokenizer, items, tokens = self.max_tokens, self.tokenizer, list[TokenizedText](), list[int]()
        needs, kept = (sys.maxsize, slice(-most, None)) if self.truncates_left else (most, slice(most))
        whole = partial(self._encoder.whole_text, prompt=prefix)
        found = encodings(texts, budget, tokenizer, most, whole=whole, extra=len(prefix), needs=needs)
        for text, encoding in zip(texts.texts, found, strict=True):
            items.append(TokenizedText(text, array("l", encoding.ids[kept])))
            tokens.append(len(items[-1]) + tokenizer.num_special_tokens)
            budget.spend(tokens[-1])
        return Job(items, tokens, (prefix, normalize))

    def ranking(
        self, query: Texts, passages: Texts, budget: TokenBudget, most_tokens: int | None, most_chunks: int | None
    ) -> tuple[list[Job], list[Texts], Sequence[int]]:
        """Return jobs, query and parts of passages, and the number of parts of each passage.

        The score of a passage is the greatest score of its parts. Without a reranker, the prompts "query" and "document" are put before the
        texts, as encode_query and encode_document do. Raises ApiError.
        """
        reranker = self._reranker
        if reranker is None:
            prompt = self.prompts["document"]

            def length(text: str) -> int:
                return len(self.tokenizer.encode([self._encoder.whole_text(text, prompt)], with_offsets=False)[0])

            first = self.work(query, prompt=self.prompts["query"], budget=budget)
            parts, counts = passage_parts(
                passages, self.tokenizer, budget, length, self.max_tokens, most_tokens, most_chunks
            )
            return [first, self.work(parts, prompt=prompt, budget=budget)], [query, parts], counts

        most, tokenizer, (asked,) = reranker.max_tokens, reranker.tokenizer, query.texts

        def pairs(texts: Sequence[str]) -> list[Encoding]:
            return reranker.tokenize([(asked, text) for text in texts])

        (encoding,) = encodings(query, budget, tokenizer, most)
        budget.check(len(encoding) * len(passages.texts))  # it is tokenized with every passage
        parts, counts = passage_parts(
            passages, tokenizer, budget, lambda text: len(pairs([text])[0]), most, most_tokens, most_chunks
        )
        tokens = list[int]()
        for encoding in encodings(parts, budget, tokenizer, most, pairs=pairs, extra=len(asked)):
            tokens.append(min(len(encoding), most))
            budget.spend(tokens[-1])
        return [Job([(asked, text) for text in parts.texts], tokens, _PAIRS)], [query, parts], counts

    def texts_of(self, source: Texts, limits: Limits) -> list[str]:
        """Return the texts of token ids. Raises ApiError: as `text_of`, or beyond a limit."""
        TokenBudget(limits.tokens).check(sum(map(len, source.texts)))
        most = self.max_tokens + self.tokenizer.num_special_tokens
        texts, characters = [], 0
        for number, ids in enumerate(source.texts):
            if len(ids) > most and not source.is_cut:
                _refuse_long(source, number, f"{len(ids):,} token ids, special ones included", most)
            texts.append(self.text_of(ids, source.places[number], source.key))
            characters += len(texts[-1])
            if characters > limits.body_bytes:  # a token of one number may be a hundred characters
                raise ApiError(
                    413, f"{source.key} is a text of more than {limits.body_bytes:,} characters", param=source.key
                )
        return texts

    def text_of(self, ids: Sequence[int], place: str, key: str) -> str:
        """Return the text of which the model's tokenizer makes these ids.

        The ids may have special tokens. Raises ApiError with place and key if there is no such text, so that ids of another tokenizer never
        give the vector of another text.
        """
        tokenizer = self.tokenizer
        before, behind = tokenizer.prefix_ids, tokenizer.suffix_ids
        inside = list(ids)
        if before + behind and inside[: len(before)] == before and inside[len(inside) - len(behind) :] == behind:
            inside = inside[len(before) : len(inside) - len(behind)]
        if inside and max(inside) < tokenizer.vocab_size:
            tokens = [tokenizer.backend.id_to_token(number) or "" for number in inside]
            # By the tokenizer's decoder, and by the tokens themselves, since not every file has a decoder.
            decoded = tokenizer.decode(inside, skip_special_tokens=False)
            for text in dict.fromkeys([decoded, join_tokens(token_text(tokens), 0, len(inside))]):
                (again,) = tokenizer.encode([text], with_offsets=False)
                if again.ids == inside:
                    return text
        raise ApiError(
            422,
            f"{place} is not what this model's tokenizer makes of a text: send strings, or ids of its own tokenizer "
            "(a client that tokenizes for OpenAI's models sends others; LangChain's has check_embedding_ctx_length=False)",
            param=key,
        )

    def run(self, items: Sequence[Any], kind: Any) -> np.ndarray:
        """Compute (R, E) float32 vectors in one pass over all tokens, or (R, 1) logits of pairs.

        A vector that is not finite becomes NaN, so that `check_finite` raises for its request and for no other.
        """
        if kind is _PAIRS:
            assert self._reranker is not None
            # In groups, so that long texts are not tokenized together. A pair has the same bits in any batch.
            sizes = [len(query) + len(passage) for query, passage in items]
            logits = [self._reranker.logits(items[group], overflow="truncate") for group in _groups(sizes)]
            return np.concatenate(logits)[:, None]
        prompt, normalize = kind
        (result,) = self._encoder.stream(
            [items], prompt=prompt, normalize=normalize, tokens_per_batch=1 << 40, skip_invalid=True
        )
        rows_RE = np.full((len(items), self.width), np.nan, np.float32)
        rows_RE[result.report.document] = result.vectors
        return rows_RE

    def shortened(self, vectors_RE: np.ndarray, dimensions: int | None, normalize: bool | None = None) -> np.ndarray:
        """Return first dimensions, scaled to length 1 if `normalize`; None: as the model."""
        if dimensions is None:
            return vectors_RE
        first = vectors_RE[:, :dimensions]
        if not (self.has_unit_vectors if normalize is None else normalize):
            return first
        norms = np.sqrt(np.square(first.astype(np.float64)).sum(1, keepdims=True))
        return (first / np.maximum(norms, np.finfo(np.float64).tiny)).astype(np.float32)

    def scores(self, rows: Sequence[np.ndarray], sides: Sequence[Texts], *, raw: bool) -> list[float]:
        """Compute scores of parts of passages: the cosine with the query, or the reranker's.

        Args:
            rows: the rows of each job.
            sides: the query and the parts.
            raw: return the reranker's logits, without a sigmoid.

        Raises:
            ApiError: a score or a vector is NaN or infinite.
        """
        if self._reranker is not None:
            check_finite(rows[0], sides[1], "score")
            logits = rows[0][:, 0]
            return (sigmoid(logits) if self._reranker.has_sigmoid and not raw else logits).tolist()
        for vectors, texts in zip(rows, sides, strict=True):
            check_finite(vectors, texts, "vector")
        query, passages = (vectors.astype(np.float64) for vectors in rows)
        # Each row is summed by itself: in a matrix product, its bits might depend on the other passages.
        dots = (passages * query).sum(1)
        norms = np.sqrt(np.square(passages).sum(1)) * np.sqrt(np.square(query).sum())
        return (dots / np.maximum(norms, np.finfo(np.float64).tiny)).tolist()


def encodings(
    source: Texts,
    budget: TokenBudget,
    tokenizer: Tokenizer,
    most: int,
    *,
    whole: Callable[[str], str] = str,
    pairs: Callable[[Sequence[str]], Sequence[Encoding]] | None = None,
    extra: int = 0,
    needs: int = sys.maxsize,
) -> Iterator[Encoding]:
    """Yield the tokens of each text. Raises ApiError: a text is empty or too long.

    Args:
        source: the texts.
        budget: its limit is that of a text that is read as a whole before it is truncated.
        tokenizer: the tokenizer of the texts.
        most: the most tokens that the model takes.
        whole: returns what is tokenized of a text.
        pairs: returns the tokens of texts with the query. None: of the texts.
        extra: characters that are tokenized with each text.
        needs: the number of first tokens that are read of a text that is truncated.
    """
    for group in _groups([extra + len(text) for text in source.texts]):
        texts = [whole(text) for text in source.texts[group]]
        for number, text in enumerate(texts, start=group.start):
            if not source.texts[number].strip():
                _refuse_empty(source, number)
            if source.is_cut:
                texts[number - group.start] = beginning(tokenizer, text, needs, budget)
            elif (count := least_tokens(tokenizer, text, most)) > most:
                _refuse_long(source, number, f"more than {count:,} tokens", most)
        found = tokenizer.encode(texts, with_offsets=False) if pairs is None else pairs(texts)
        for number, encoding in enumerate(found, start=group.start):
            if not len(encoding):
                _refuse_empty(source, number)
            if len(encoding) > most and not source.is_cut:
                has = f"{len(encoding):,} tokens" + " with the query" * (pairs is not None)
                _refuse_long(source, number, has, most)
            yield encoding


def least_tokens(tokenizer: Tokenizer, text: str, most: int) -> int:
    """Count a long text's tokens in pieces until they exceed `most`; return 0 for a short text.

    All tokens of the longest text of a request would take two gigabytes of memory.
    """
    count = 0
    for start in range(0, len(text) if len(text) > _PIECE else 0, _PIECE):
        (piece,) = tokenizer.encode([text[start : start + _PIECE]], with_offsets=False)
        count += max(0, len(piece) - _AT_CUT)
        if count > most:
            break
    return count


def beginning(tokenizer: Tokenizer, text: str, most: int, budget: TokenBudget) -> str:
    """Return a beginning with a text's first `most` tokens, or the text if that is unknown.

    Raises ApiError: the text has more tokens than a request may have.
    """
    length = max(_PIECE, most)
    if tokenizer.splits_at_spaces and length < len(text):
        end = prefix_end(text, length)
        if end <= 2 * length and len(tokenizer.encode([text[:end]], with_offsets=False)[0]) > most:
            return text[:end]
    TokenBudget(budget.limit).check(least_tokens(tokenizer, text, budget.limit))
    return text


def passage_parts(
    passages: Texts,
    tokenizer: Tokenizer,
    budget: TokenBudget,
    length: Callable[[str], int],
    most: int,
    cut: int | None,
    chunks: int | None,
) -> tuple[Texts, Sequence[int]]:
    """Return the texts that are scored, and how many of them each passage has. Raises ApiError.

    Args:
        passages, tokenizer, budget: the passages, and the tokenizer and the tokens of the request.
        length: returns the tokens of a text as the model reads it.
        most: the most tokens that the model takes.
        cut: read only the first tokens of a passage. None: all.
        chunks: divide a passage into at most so many chunks, each as long as the model takes. None: do not divide it.
    """
    if cut is None and chunks is None:
        return passages, [1] * len(passages.texts)
    parts, places, counts, tokens = list[str](), list[str](), list[int](), 0
    read = min(cut or sys.maxsize, (chunks or sys.maxsize) * most)  # tokens of a passage
    for place, passage in zip(passages.places, passages.texts, strict=True):
        text = beginning(tokenizer, passage, read, budget)
        (encoding,) = tokenizer.encode([text], with_offsets=True)
        ends = [0, *(stop for _, stop in encoding.offsets)]
        ends = ends[: read + 1] if len(encoding) > read else [*ends[:-1], len(text)]
        pieces = [text[: ends[-1]]]
        if chunks is not None:
            pieces = []
            for chunk, size in islice(_chunks(text, ends, length, most), chunks):
                tokens += size
                budget.check(tokens)
                pieces.append(chunk)
        parts += pieces or [text]
        places += [place] * max(1, len(pieces))
        counts.append(max(1, len(pieces)))
    return passages._replace(texts=parts, places=places), counts


def _chunks(text: str, ends: Sequence[int], length: Callable[[str], int], most: int) -> Iterator[tuple[str, int]]:
    """Yield chunks that the model takes, and their numbers of tokens.

    ends: 0, and then where each token ends in the text.
    """
    first, last = 0, len(ends) - 1
    while first < last:
        stop = min(first + most, last)
        while (size := length(text[ends[first] : ends[stop]])) > most and stop > first + 1:
            stop = max(first + 1, stop - (size - most))
        if (chunk := text[ends[first] : ends[stop]]).strip():
            yield chunk, size
        first = stop


def _refuse_empty(texts: Texts, number: int) -> NoReturn:
    raise ApiError(422, f"{texts.places[number]} is empty: it has no tokens", param=texts.key)


def _refuse_long(texts: Texts, number: int, has: str, most: int) -> NoReturn:
    message = f"{texts.places[number]} has {has}, and the model takes at most {most:,}"
    raise ApiError(413, f"{message}; send {texts.truncation_key}: true to truncate it", param=texts.key)


def _groups(sizes: Sequence[int]) -> Iterator[slice]:
    """Yield slices of texts with so many characters, each of which is tokenized at a time."""
    for group in groups(range(len(sizes)), sizes.__getitem__, max_documents=sys.maxsize, max_characters=_PIECE):
        yield slice(group[0], group[-1] + 1)
