"""Token strings for display, of every kind of tokenizer."""

import pytest

from uwaga.viewer.queries.heads import Axis
from uwaga.viewer.token_text import join_tokens, token_text, word_ranges


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[CLS]", "un", "##seen", "the", "##", "cat", "[SEP]"], ["[CLS]", "unseen", "the", "##", "cat", "[SEP]"]),
        (
            ["This", "Ġis", "Ġa", "Ġcaf", "Ã©", "Ċ", "Ċ", "So", "<|endoftext|>"],
            ["This", "is", "a", "café", "\n", "\n", "So", "<|endoftext|>"],
        ),
        (["▁translate", "▁En", "glish", ":", "</s>"], ["translate", "English:", "</s>"]),
        (list("to be\nor"), ["to ", "be", "\n", "or"]),
        (["5", "6"], ["5", "6"]),
        (["<script>", "alert"], ["<script>", "alert"]),
    ],
    ids=["WordPiece", "bytes", "SentencePiece", "characters", "ids", "no special token"],
)
def test_tokens_are_grouped_into_words(tokens: list[str], words: list[str]) -> None:
    read = token_text(tokens)
    assert "".join(join_tokens(read, *word).strip(" ") for word in word_ranges(read)) == "".join(words).replace(" ", "")
    assert [join_tokens(read, *word) for word in word_ranges(read)] == [word.strip(" ") for word in words]


def test_a_character_split_over_two_tokens_is_shown_as_incomplete() -> None:
    assert token_text(["Ġcaf", "Ã", "©"]).labels == ["caf", "\ufffd", "\ufffd"]


def test_special_tokens_are_recognised() -> None:
    read = token_text(["[CLS]", "[UNK]", "<s>", "<b>", "[x]", "<extra_id_3>"])
    assert read.special == [True, False, True, False, False, True]


def test_a_text_of_special_tokens_keeps_them() -> None:
    assert len(Axis.of(token_text(["[CLS]", "[SEP]"]), merge="words", specials="hide")) == 2


def test_a_text_without_spaces_is_split_into_words() -> None:
    read = token_text(["a", *["##b"] * 70, "c"])
    assert word_ranges(read) == [(0, 32), (32, 64), (64, 71), (71, 72)]


def test_a_long_token_is_truncated_for_display() -> None:
    assert token_text(["x" * 5000]).labels == ["x" * 999 + "…"]
