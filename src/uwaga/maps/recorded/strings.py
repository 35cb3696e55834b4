"""Tokens as strings: by a tokenizer, as they are given, or their ids."""

from collections.abc import Callable, Mapping, Sequence

Given = Sequence[str] | Sequence[Sequence[str]]


class Strings:
    """What the tokens of a recording are called.

    Args:
        tokenizer: has `convert_ids_to_tokens`, as those of transformers, or `id_to_token`, as those of tokenizers; or is a
            function from a list of ids to a list of strings. None: a token is called by its id. Of an encoder and a decoder
            that do not share one: a dict of both.
        tokens: the strings themselves: of one row, or a list for each row; of an encoder and a decoder a dict of both.
    """

    def __init__(self, tokenizer: object, tokens: Given | Mapping[str, Given] | None) -> None:
        if tokenizer is not None and tokens is not None:
            raise ValueError("watch: tokenizer and tokens both say what tokens are called: give one of them")
        self._callers = {
            kind: _caller(tokenizer.get(kind) if isinstance(tokenizer, Mapping) else tokenizer)
            for kind in ("encoder", "decoder")
        }
        self._given = tokens

    def of(
        self, kind: str, lengths: list[int], ids: list[list[int]] | None, kinds: list[str]
    ) -> list[list[str]] | None:
        """The strings of every row; None where nothing is known.

        Args:
            kind: "encoder" or "decoder".
            lengths: tokens per row.
            ids: per row, where they are known.
            kinds: those that were recorded.
        """
        if self._given is not None:
            return self._checked(kind, lengths, kinds)
        return None if ids is None else [self._callers[kind](row) for row in ids]

    def _checked(self, kind: str, lengths: list[int], kinds: list[str]) -> list[list[str]] | None:
        given = self._given
        if isinstance(given, Mapping):
            if kind not in given:
                return None
            given = given[kind]
        elif len(kinds) > 1:
            raise ValueError(
                'watch: an encoder and a decoder were recorded: give tokens as {"encoder": ..., "decoder": ...}'
            )
        assert given is not None
        listed = [list(given)] if all(isinstance(token, str) for token in given) else [list(row) for row in given]
        if [len(row) for row in listed] != lengths:
            found = f"{[len(row) for row in listed]}, and {lengths} were recorded"
            raise ValueError(f"watch: tokens must be one string per token of the {kind}, but rows have {found}")
        return [[str(token) for token in row] for row in listed]


def _caller(tokenizer: object) -> Callable[[list[int]], list[str]]:
    if tokenizer is None:
        return lambda ids: [str(each) for each in ids]
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return lambda ids: [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    if hasattr(tokenizer, "id_to_token"):

        def by_id(ids: list[int]) -> list[str]:
            names = ((each, tokenizer.id_to_token(each)) for each in ids)
            return [str(each) if name is None else name for each, name in names]

        return by_id
    if callable(tokenizer):
        return lambda ids: [str(token) for token in tokenizer(ids)]
    kinds = "a tokenizer of tokenizers or transformers, or a function from a list of ids to strings"
    raise ValueError(f"watch: tokenizer must be {kinds}, not {type(tokenizer).__name__}")
