"""Which tokens make a word, in the forms that tokenizers give."""

from collections.abc import Sequence

# What says which tokens are a word: an id per token (None: a special token), or (start, stop) pairs.
Words = Sequence[int | None] | Sequence[tuple[int, int]]


def word_spans(words: Words, tokens: int) -> list[tuple[int, int]]:
    """The tokens [start, stop) of every word, from ids as Hugging Face's tokenizers give them by `word_ids()`.

    Neighbours with the same id are one word. A special token, None, is a word of its own: then all weight stays in the
    matrix and rows sum to 1. Ids may start again, as those of a pair of texts do. Pairs (start, stop) are taken as they
    are; they must rise and not overlap, and may leave tokens out.

    Raises:
        ValueError: not one id per token, or spans that overlap, fall or leave the tokens.

    >>> word_spans([None, 0, 1, 1, 2, None], 6)
    [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]
    """
    if all(word is None or isinstance(word, int) for word in words):
        if len(words) != tokens:
            raise ValueError(f"WordMap: there must be one word id for each of the {tokens} tokens, not {len(words)}")
        starts = [i for i, word in enumerate(words) if i == 0 or word is None or word != words[i - 1]]
        return list(zip(starts, [*starts, tokens][1:], strict=True))
    spans = [(int(start), int(stop)) for start, stop in words]
    edges = [edge for span in spans for edge in span]
    if not all(start < stop for start, stop in spans) or edges != sorted(edges) or edges[0] < 0 or edges[-1] > tokens:
        raise ValueError(f"WordMap: spans must rise within the {tokens} tokens, without overlap: {spans}")
    return spans


def word_labels(tokens: Sequence[str], words: Words) -> list[str]:
    """A label per word, for figures: its tokens as one string, without the marks that stand for joints and spaces.

    >>> word_labels(["[CLS]", "un", "##seen", "Ġtoken"], [None, 0, 0, 1])
    ['[CLS]', 'unseen', 'token']
    """
    spans = word_spans(words, len(tokens))
    joined = ["".join(token.removeprefix("##") for token in tokens[start:stop]) for start, stop in spans]
    return [word.replace("Ġ", " ").replace("▁", " ").strip() for word in joined]
