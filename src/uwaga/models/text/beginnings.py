"""The first tokens of long texts, without tokenising the rest of them."""

from collections.abc import Sequence

from tokenizers import Encoding

from uwaga.models.text.tokenizer import Tokenizer

# A first guess of how many characters hold a token: English has four to five.
_CHARACTERS_PER_TOKEN = 8
_GROWTH = 4


def encode_beginnings(tokenizer: Tokenizer, texts: Sequence[str], *, max_tokens: int) -> list[Encoding]:
    """For each text all its tokens, or more than `max_tokens` of them, with their places: those of the whole text."""
    if not tokenizer.can_cut:
        return tokenizer.encode(texts, with_places=True)
    found: dict[int, Encoding] = {}
    wanted, length = list(range(len(texts))), max_tokens * _CHARACTERS_PER_TOKEN
    while wanted:
        ends = {place: _end(texts[place], length) for place in wanted}
        heads = [texts[place][: ends[place]] for place in wanted]
        for place, tokens in zip(wanted, tokenizer.encode(heads, with_places=True), strict=True):
            found[place] = tokens
        wanted = [
            place for place in wanted if ends[place] < len(texts[place]) and len(found[place]) <= max_tokens
        ]  # fmt: skip
        length *= _GROWTH
    return [found[place] for place in range(len(texts))]


def _end(text: str, length: int) -> int:
    """Where to cut: behind a character that is no space and before one that is; at the end where there is no such place."""
    end = length
    while 0 < (end := text.find(" ", end)) < len(text):
        if not text[end - 1].isspace():
            return end
        end += 1
    return len(text)
