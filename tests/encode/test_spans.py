"""Late chunking: vectors of spans are transformers' last hidden states of their tokens, pooled by hand.

Letters: T tokens, M width.
"""

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerance import assert_as_exact
from torch import nn

import uwaga
from uwaga import TextEncoder
from uwaga.data.passages import split_spans
from uwaga.encode.preprocessing import span_tokens

TEXT = "The cat sat on the mat. A dog ran away\n\nfrom the house, and then it was unbelievable."
TEXTS = [TEXT, "the cat", "  A cat. The dog .", "é it ran\naway"]
SPLITS = ["paragraph", "sentence", "line", "document"]


@pytest.fixture
def encoder(write_model: Callable[..., Path], tmp_path: Path) -> TextEncoder:
    """Takes 40 tokens beside two special ones."""
    return TextEncoder.load(write_model(tmp_path / "model", positions=42, tokenizer={"model_max_length": 42}))


def by_hand(folder: Path, text: str, spans: list[tuple[int, int]], *, prompt: str = "") -> Callable:
    """For a model of transformers: the mean of the states of the tokens that begin in each span, (spans, M)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    read = tokenizer(prompt + text, return_offsets_mapping=True, return_tensors="pt", truncation=False)
    offsets = [tuple(pair) for pair in read.pop("offset_mapping")[0].tolist()]

    def pooled(model: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            states_TM = model(**read).last_hidden_state[0]
        rows = []
        for start, stop in spans:
            inside = [n for n, (a, b) in enumerate(offsets) if b > a and start <= a - len(prompt) < stop]
            rows.append(states_TM[inside].mean(0))
        return torch.stack(rows)

    return pooled


def agrees(encoder: TextEncoder, texts: list[str], spans: list[list[tuple[int, int]]], **options: str) -> None:
    from transformers import AutoModel

    folder = encoder.config.folder
    model = AutoModel.from_pretrained(folder).eval()
    pooled = [by_hand(folder, text, ranges, **options) for text, ranges in zip(texts, spans, strict=True)]
    ours = encoder.encode(texts, spans=spans, **options)
    assert ours.lengths.tolist() == list(map(len, spans))
    exact = copy.deepcopy(model).double()
    assert_as_exact(
        ours.values, torch.cat([mean(model) for mean in pooled]), lambda: torch.cat([mean(exact) for mean in pooled])
    )


@pytest.mark.parametrize("prompt", ["", "the cat: "])
def test_vectors_are_the_means_of_the_states_of_a_whole_text(encoder: TextEncoder, prompt: str) -> None:
    any_order = [(40, 50), (0, len(TEXT)), (4, 7), (0, 11), (8, 30)]
    texts = [TEXT, *(text for text in TEXTS for _ in SPLITS)]
    spans = [any_order, *(split_spans(text, split) for text in TEXTS for split in SPLITS)]
    agrees(encoder, texts, spans, prompt=prompt)
    assert encoder.report.start.tolist()[:5] == [40, 0, 4, 0, 8]
    assert encoder.report.cut.tolist() == []


def test_a_token_is_in_the_span_of_its_first_character(encoder: TextEncoder) -> None:
    """Unbelievable is three tokens: un, ##believ, ##able."""
    start = TEXT.index("unb")
    encoder.encode(TEXT, spans=[(start, start + 1), (start + 1, start + 3), (start + 3, len(TEXT))])
    assert encoder.report.tokens.tolist() == [1, 1, 2]


def test_white_space_that_a_token_begins_with_is_passed_over() -> None:
    """As those of SentencePiece and of byte-level BPE without trimmed offsets."""
    text = "a cat\n\nsat"
    offsets = [(0, 1), (1, 5), (5, 6), (6, 7), (7, 10)]
    found = span_tokens(text, [(0, 2), (2, 5), (5, 7), (7, 10)], offsets, 0)
    assert [tokens.tolist() for tokens in found] == [[0], [1], [2, 3], [4]]
    # "to: " before it: one token ends in the prompt, and one is of both.
    moved = [(0, 3), (3, 5), *((start + 4, stop + 4) for start, stop in offsets[1:])]
    found = span_tokens(text, [(0, 2), (2, 5)], moved, 4)
    assert [tokens.tolist() for tokens in found] == [[1], [2]]


@pytest.mark.parametrize(
    ("split", "tokens_per_batch", "dtype"),
    [
        ("paragraph", 7, torch.float32),
        ("sentence", 1, torch.float32),
        ("line", 7, torch.bfloat16),
        ("document", 2048, torch.bfloat16),
    ],
)
def test_a_text_has_the_same_bits_alone(
    encoder: TextEncoder, split: str, tokens_per_batch: int, dtype: torch.dtype
) -> None:
    encoder = TextEncoder.load(encoder.config.folder, dtype=dtype)
    together = encoder.encode(TEXTS, spans=split, tokens_per_batch=tokens_per_batch)
    assert together.values.dtype == torch.float32
    document = encoder.report.document.tolist()
    for number, text in enumerate(TEXTS):
        alone = encoder.encode(text, spans=split)
        assert torch.equal(alone.values, together.to_list()[number])
        spans = list(zip(encoder.report.start.tolist(), encoder.report.stop.tolist(), strict=True))
        assert spans == split_spans(text, split)
        assert document.count(number) == len(spans)


def test_long_texts_are_read_in_windows_and_keep_the_states_of_the_first(encoder: TextEncoder) -> None:
    long = " ".join([TEXT.replace("\n\n", " ")] * 4)
    spans = split_spans(long, "sentence")
    ours = encoder.encode([TEXT, long], spans="sentence", overflow="windows", overlap=7, tokens_per_batch=50)
    assert set(encoder.report.windows.tolist()) == {1, 3}
    # By hand, from the states of the windows as output="tokens" gives them.
    states = encoder.encode([long], output="tokens", overflow="windows", overlap=7).to_list()
    (tokens,) = encoder.tokenizer.encode([long], with_offsets=True)
    windows = [len(state) - 2 for state in states]
    assert sum(windows) - 7 * (len(windows) - 1) == len(tokens) == 92
    kept = torch.cat([state[1 if n == 0 else 8 : -1] for n, state in enumerate(states)])
    for row, (start, stop) in zip(ours.to_list()[1], spans, strict=True):
        inside = [n for n, (first, _) in enumerate(tokens.offsets) if start <= first < stop]
        torch.testing.assert_close(row, kept[inside].mean(0), rtol=2e-6, atol=2e-6)
    assert torch.equal(encoder.encode(long, spans="sentence", overflow="windows", overlap=7).values, ours.to_list()[1])


def test_heads_lengths_and_widths_are_those_of_encode(encoder: TextEncoder, describe) -> None:
    folder = encoder.config.folder
    describe(folder, sentence={"max_seq_length": 42}, pooling={"pooling_mode": "max"})
    unit = TextEncoder.load(folder)
    vectors = unit.encode(TEXT, spans="sentence").values
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
    cut = unit.encode(TEXT, spans="sentence", truncate_dim=4, normalize=False).values
    assert cut.shape == (len(vectors), 4)
    states = encoder.encode([TEXT], output="tokens").values
    (tokens,) = encoder.tokenizer.encode([TEXT], with_offsets=True)
    first = [n + 1 for n, (start, _) in enumerate(tokens.offsets) if start < split_spans(TEXT, "sentence")[0][1]]
    assert torch.equal(cut[0], states[first].amax(0)[:4])


def test_the_report_counts_what_no_span_has(encoder: TextEncoder) -> None:
    encoder.encode([TEXT, "the cat"], spans=[[(8, 23), (0, 7)], [(0, 7)]])
    assert encoder.report.cut.tolist() == [0]
    assert encoder.report.summary.lost == len(TEXT) - 23


def test_ten_thousand_sentences_of_one_text(encoder: TextEncoder) -> None:
    long = "the cat sat. it ran. " * 5000
    result = encoder.encode(long, spans="sentence", overflow="windows", overlap=10)
    assert result.lengths.tolist() == [10_000]
    assert isinstance(result, uwaga.Ragged)
    assert np.isfinite(result.values.numpy()).all()
