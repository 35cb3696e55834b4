"""What the server computes: vectors of texts, and scores of passages for a query, by a model or by the similarity of vectors.

Letters: R texts, E width of a vector.
"""

import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
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

_PIECE = 1 << 16  # characters that are tokenized at a time: some 30 MB of memory if each is a token
_AT_CUT = 256  # tokens that a piece may have more than its part of the whole has: a word of 100 characters is divided
_PAIRS = object()  # the kind of pairs for a cross-encoder


def check_finite(rows_RE: np.ndarray, texts: Texts, what: str) -> None:
    """Raises ApiError: a row, of one of these texts, has an entry that is NaN or infinite. JSON has no such numbers."""
    is_finite_R = np.isfinite(rows_RE).all(1)
    if not is_finite_R.all():
        place = texts.places[is_finite_R.argmin()]
        instead = "leave it out, or start the server with --dtype float32 or another model"
        raise ApiError(422, f"{place} has a {what} that is NaN or infinite; {instead}", param=texts.key)


class TokenBudget:
    """The tokens that a request may still have, special ones included, of those that the model reads."""

    def __init__(self, limit: int) -> None:
        self.limit, self.spent = limit, 0

    def spend(self, tokens: int) -> None:
        """Raises ApiError."""
        self.check(tokens)
        self.spent += tokens

    def check(self, tokens: int) -> None:
        """Raises ApiError: so many more are too many."""
        if self.spent + tokens > self.limit:
            message = f"the request has more tokens than the limit of {self.limit:,}"
            raise ApiError(413, message, code="too_many_tokens")


class EmbeddingModel:
    """A TextEncoder as the server uses it, and a Reranker if passages are ranked by one.

    `run` is called in the model's thread. It alone calls the models, which are not safe to call from two threads. The other methods call
    their tokenizers, in threads that read requests.
    """

    def __init__(self, encoder: TextEncoder, reranker: Reranker | None = None) -> None:
        self._encoder, self._reranker = encoder, reranker
        self.tokenizer = encoder.tokenizer
        self.prompts: Mapping[str, str] = encoder.prompts
        self.truncates_left, self.ranks_left = encoder.truncates_left, (reranker or encoder).truncates_left
        self.width, self.has_unit_vectors = encoder.embedding_dim, encoder.has_unit_vectors
        self.max_tokens = encoder.max_tokens  # of a text, special ones not counted

    def work(self, texts: Texts, *, prompt: str | None, budget: TokenBudget, normalize: bool | None = None) -> Job:
        """Return the job that computes the vectors of texts. Raises ApiError, which names the text: it is empty or too long.

        Args:
            texts: what is read; if they may be truncated, the first `max_tokens` tokens of a longer one are read, or the last
                ones if the model's directory says so.
            prompt: before every text; None: the model's default.
            budget: for the tokens of the request.
            normalize: as `TextEncoder.encode`.
        """
        prefix = self._encoder.config.prompt if prompt is None else prompt
        most, tokenizer, items, tokens = self.max_tokens, self.tokenizer, list[TokenizedText](), list[int]()
        needs, kept = (sys.maxsize, slice(-most, None)) if self.truncates_left else (most, slice(most))
        found = encodings(
            texts,
            budget,
            tokenizer,
            most,
            whole=lambda text: self._encoder.whole_text(text, prefix),
            beside=len(prefix),
            needs=needs,
        )
        for text, encoding in zip(texts.texts, found, strict=True):
            items.append(TokenizedText(text, array("l", encoding.ids[kept])))
            tokens.append(len(items[-1]) + tokenizer.num_special_tokens)
            budget.spend(tokens[-1])
        return Job(items, tokens, (prefix, normalize))

    def ranking(
        self, query: Texts, passages: Texts, budget: TokenBudget, most_tokens: int | None, most_chunks: int | None
    ) -> tuple[list[Job], list[Texts], Sequence[int]]:
        """What must be computed, the query and the parts of passages (`passage_parts`), and of how many of them the score of each passage is
        the greatest. Without a reranker, the prompts "query" and "document" are put before the texts, as encode_query and
        encode_document do. Raises ApiError."""
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
        for encoding in encodings(parts, budget, tokenizer, most, pairs=pairs, beside=len(asked)):
            tokens.append(min(len(encoding), most))
            budget.spend(tokens[-1])
        return [Job([(asked, text) for text in parts.texts], tokens, _PAIRS)], [query, parts], counts

    def texts_of(self, source: Texts, limits: Limits) -> list[str]:
        """Return the texts of token ids. Raises ApiError, also if they are more than a request may hold."""
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
        """Return the text from which the model's own tokenizer makes these ids, with its special tokens or without them.

        Raises ApiError, which names the place and the key: there is none. So ids of another tokenizer never become the vector of something else.
        """
        tokenizer = self.tokenizer
        before, behind = tokenizer.prefix_ids, tokenizer.suffix_ids
        inside = list(ids)
        if before + behind and inside[: len(before)] == before and inside[len(inside) - len(behind) :] == behind:
            inside = inside[len(before) : len(inside) - len(behind)]
        if inside and max(inside) < tokenizer.vocab_size:
            tokens = [tokenizer.backend.id_to_token(number) or "" for number in inside]
            # By the tokenizer's own decoder; not every file has one.
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
        """(R, E) float32 vectors, in one pass over all tokens, those that `work` found; of pairs (R, 1) logits. NaN if a vector is not
        finite, which `check_finite` tells those who asked for it and no others."""
        if kind is _PAIRS:
            assert self._reranker is not None
            # A pair has the same bits in any batch; long texts are not tokenized together.
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
        """Return the first numbers of each vector, scaled to length 1 if `normalize` is true, or if it is None and the model does so."""
        if dimensions is None:
            return vectors_RE
        first = vectors_RE[:, :dimensions]
        if not (self.has_unit_vectors if normalize is None else normalize):
            return first
        norms = np.sqrt(np.square(first.astype(np.float64)).sum(1, keepdims=True))
        return (first / np.maximum(norms, np.finfo(np.float64).tiny)).astype(np.float32)

    def scores(self, rows: Sequence[np.ndarray], sides: Sequence[Texts], *, raw: bool) -> list[float]:
        """For each part of a passage a number, from the rows of each job: the cosine of its vector and the query's, or the reranker's score;
        higher is better. sides: the query and the parts. raw: before any sigmoid. Raises ApiError: one is NaN or infinite."""
        if self._reranker is not None:
            check_finite(rows[0], sides[1], "score")
            logits = rows[0][:, 0]
            return (sigmoid(logits) if self._reranker.has_sigmoid and not raw else logits).tolist()
        for vectors, texts in zip(rows, sides, strict=True):
            check_finite(vectors, texts, "vector")
        query, passages = (vectors.astype(np.float64) for vectors in rows)
        # A row is summed by itself, so that its score does not depend on the other passages, as that of a matrix product might.
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
    beside: int = 0,
    needs: int = sys.maxsize,
) -> Iterator[Encoding]:
    """Return the tokens of each text, some texts at a time. Raises ApiError, which names the text: it is empty or too long.

    Args:
        source: the texts.
        budget: whose limit holds for a text that is read whole before it is truncated.
        tokenizer: of the texts.
        most: tokens that the model takes.
        whole: from a text to what is tokenized of it.
        pairs: from texts to their tokens with the query; None: the tokenizer alone.
        beside: characters that are tokenized with each text.
        needs: the first tokens that are read of a text that is truncated.
    """
    for group in _groups([beside + len(text) for text in source.texts]):
        texts = [whole(text) for text in source.texts[group]]
        for number, text in enumerate(texts, start=group.start):
            if is_blank(source.texts[number]):
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
    """The tokens that a long text surely has, counted in pieces until there are more than `most`; 0 for a short one. All tokens of a
    request's longest text would take two gigabytes of memory."""
    count = 0
    for start in range(0, len(text) if len(text) > _PIECE else 0, _PIECE):
        (piece,) = tokenizer.encode([text[start : start + _PIECE]], with_offsets=False)
        count += max(0, len(piece) - _AT_CUT)
        if count > most:
            break
    return count


def beginning(tokenizer: Tokenizer, text: str, most: int, budget: TokenBudget) -> str:
    """So much of a long text that its first `most` tokens are those of the whole; if that cannot be known, the whole text. Raises
    ApiError: it has more tokens than a request may have."""
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
    """The texts that are scored, and how many each passage has: one, or if the request asks for chunks, as many as the model takes
    one after the other. Raises ApiError.

    Args:
        length: tokens of a text as the model reads it, of which it takes `most`.
        cut: tokens of a passage beyond which nothing is read; None: all are read.
        chunks: that a passage is divided into, each as long as the model takes; None: it is not divided.
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
    """The text in chunks of as many tokens as the model takes, and these. ends: where the tokens end in it, after a 0."""
    first, last = 0, len(ends) - 1
    while first < last:
        stop = min(first + most, last)
        while (size := length(text[ends[first] : ends[stop]])) > most and stop > first + 1:
            stop = max(first + 1, stop - (size - most))
        if not is_blank(chunk := text[ends[first] : ends[stop]]):
            yield chunk, size
        first = stop


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def _refuse_empty(texts: Texts, number: int) -> NoReturn:
    raise ApiError(422, f"{texts.places[number]} is empty: it has no tokens", param=texts.key)


def _refuse_long(texts: Texts, number: int, has: str, most: int) -> NoReturn:
    message = f"{texts.places[number]} has {has}, and the model takes at most {most:,}"
    raise ApiError(413, f"{message}; send {texts.truncation_key}: true to truncate it", param=texts.key)


def _groups(sizes: Sequence[int]) -> Iterator[slice]:
    """Consecutive texts of so many characters, as many as are tokenized at a time, and one at least."""
    for group in groups(range(len(sizes)), sizes.__getitem__, max_documents=sys.maxsize, max_characters=_PIECE):
        yield slice(group[0], group[-1] + 1)
