"""Vectors of texts: the model's own hidden states, pooled, whatever the texts are packed with."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from uwaga import Ragged, TextEncoder
from uwaga.encode.progress import Progress
from uwaga.nn import EncoderLayer

TEXTS = ["the cat sat", "a dog ran away from the house .", "unbelievable", "the mat , the cat and the dog"]
LONG = "the cat sat on the mat and then it ran away from the house , and a dog sat on it"  # 21 tokens


def one_by_one(encoder: TextEncoder, texts: list[str]) -> np.ndarray:
    """The plain way: the tokenizer's own special tokens, one row, the mean over its tokens, in float64."""
    model = encoder.model.double()
    rows = []
    for text in texts:
        ids = torch.tensor([encoder.tokenizer.backend.encode(text).ids])
        with torch.no_grad():
            rows.append(model(ids).last_hidden_state[0].mean(0))
    encoder.model.float()
    return torch.stack(rows).numpy()


def close(result: np.ndarray, expected: np.ndarray) -> bool:
    """Up to the rounding of a few thousand float32 operations on numbers of about this size."""
    return bool(np.abs(result - expected).max() <= 64 * np.finfo(np.float32).eps * np.abs(expected).max())


@pytest.mark.parametrize("tokens_per_batch", [1, 8, 2048])
def test_every_text_gets_the_mean_of_its_own_tokens_in_any_packing(encoder: TextEncoder, tokens_per_batch: int) -> None:
    vectors = encoder.encode(TEXTS, tokens_per_batch=tokens_per_batch)
    assert vectors.dtype == np.float32
    assert close(vectors, one_by_one(encoder, TEXTS))
    assert encoder.encode([]).shape == (0, 16)
    assert encoder.encode([], output="tokens").values.shape == (0, 16)


def test_vectors_have_length_one_where_the_model_says_so_or_the_caller(folder: Path, describe) -> None:
    describe(folder)
    encoder = TextEncoder.load(folder)
    raw = encoder.encode(TEXTS, normalize=False)
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    assert close(encoder.encode(TEXTS), unit)
    assert not np.allclose(raw, unit)


def test_a_length_that_is_not_said_is_the_tokenizers_and_at_most_the_models(folder: Path, describe) -> None:
    describe(folder, sentence={"transformer_task": "feature-extraction"})
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    for length, max_tokens in ((12, 10), (8, 6), (500, 10), (int(1e30), 10)):
        path.write_text(json.dumps({**settings, "model_max_length": length}))
        assert TextEncoder.load(folder).max_tokens == max_tokens


def test_truncation_reads_the_beginning_and_says_what_is_lost(encoder: TextEncoder) -> None:
    beginning = "the cat sat on the mat and then it ran"
    expected = encoder.encode([TEXTS[0], beginning])
    assert np.array_equal(encoder.encode([TEXTS[0], LONG], overflow="truncate"), expected)
    assert encoder.report.cut.tolist() == [1]
    assert LONG[: encoder.report.stop[1]] == beginning
    assert str(encoder.report.summary) == (
        f"documents: 2; tokens: 17; truncated: 1 ({len(LONG) - len(beginning)} characters cut off)"
    )


def test_windows_are_rows_and_the_report_says_of_which_text(encoder: TextEncoder) -> None:
    vectors = encoder.encode([LONG, TEXTS[0]], overflow="windows", overlap=2)
    report = encoder.report
    assert report.document.tolist() == [0, 0, 0, 1]
    parts = [LONG[start:stop] for start, stop in zip(report.start[:3], report.stop[:3], strict=True)]
    assert parts == [
        "the cat sat on the mat and then",
        "and then it ran away from the house",
        "the house , and a dog sat on it",
    ]
    assert close(vectors, one_by_one(encoder, [*parts, TEXTS[0]]))
    assert "split into windows: 1 (3 windows)" in str(report.summary)
    assert repr(report) == f"Report(4 rows; {report.summary})"


def test_no_character_stands_outside_the_windows_at_the_ends(encoder: TextEncoder) -> None:
    encoder.encode([f"  {LONG}\n"], overflow="windows")
    assert encoder.report.start[0] == 0
    assert encoder.report.stop[-1] == encoder.report.characters[-1] == len(LONG) + 3
    assert len(encoder.report.cut) == 0


def test_the_mean_of_windows_is_their_mean_and_gets_length_one_after_that(encoder: TextEncoder) -> None:
    windows = encoder.encode([LONG], overflow="windows", overlap=2)
    mean = windows.astype(np.float64).mean(0, keepdims=True)
    assert close(encoder.encode([LONG], overflow="mean", overlap=2), mean)
    assert encoder.report.windows.tolist() == [3]
    assert encoder.report.cut.tolist() == []
    assert close(encoder.encode([LONG], overflow="mean", overlap=2, normalize=True), mean / np.linalg.norm(mean))


def test_tokens_are_the_hidden_states_that_vectors_are_made_of(encoder: TextEncoder) -> None:
    tokens = encoder.encode(TEXTS, output="tokens")
    assert isinstance(tokens, Ragged)
    lengths = [len(encoder.tokenizer.backend.encode(text).ids) for text in TEXTS]
    assert tokens.lengths.tolist() == lengths
    means = np.stack([row.mean(0).numpy() for row in tokens.to_list()])
    assert close(encoder.encode(TEXTS), means)
    assert len(encoder.encode([LONG], output="tokens", overflow="windows")) == 3
    weight = torch.ones(16, requires_grad=True)
    (tokens.values * weight).sum().backward()  # they can be learned from
    assert torch.isfinite(weight.grad).all()
    low = TextEncoder.load(encoder.config.folder, dtype=torch.bfloat16)
    assert low.encode(TEXTS, output="tokens").values.dtype == torch.bfloat16


def test_a_stream_gives_the_same_rows_in_pieces_and_takes_no_more_than_it_needs(encoder: TextEncoder) -> None:
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield [TEXTS[taken % 4], TEXTS[taken % 3]]

    stream = encoder.stream(endless())
    first, second = next(stream), next(stream)
    assert taken <= 4  # these groups, and the next ones, of which one is tokenised
    assert [part.report.document.tolist() for part in (first, second)] == [[0, 1], [2, 3]]
    stream.close()
    assert close(np.concatenate((first.vectors, second.vectors)), encoder.encode([TEXTS[n] for n in (1, 1, 2, 2)]))


def test_an_error_of_the_texts_themselves_comes_out_unchanged(encoder: TextEncoder) -> None:
    def broken():
        yield TEXTS[0]
        raise KeyError("mine")

    with pytest.raises(KeyError, match=r"^'mine'$"):
        list(encoder.stream(broken()))


def test_progress_counts_documents_and_tokens(encoder: TextEncoder) -> None:
    told: list[Progress] = []
    encoder.encode([*TEXTS, LONG], overflow="windows", tokens_per_batch=1, progress=told.append)
    assert [progress.documents for progress in told][:4] == [1, 2, 3, 4]
    assert told[-2].documents == 4  # the long one has more than one window, and is not finished before the last
    assert told[-1].documents == told[-1].total == 5
    assert told[-1].tokens == encoder.report.tokens.sum()


def test_a_bar_is_shown_on_standard_error_alone(encoder: TextEncoder, capsys: pytest.CaptureFixture[str]) -> None:
    encoder.encode(TEXTS, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "4 documents" in shown.err
    assert "tokens/s" in shown.err


def test_a_report_counts_characters_of_the_text_without_its_prompt(encoder: TextEncoder) -> None:
    encoder.encode([LONG], prompt="it ran and ", overflow="windows")
    assert LONG[: encoder.report.stop[0]] == "the cat sat on the"
    assert encoder.report.characters[0] == len(LONG)


def test_a_model_in_training_reads_without_dropout_and_goes_on_training(encoder: TextEncoder) -> None:
    expected = encoder.encode(TEXTS)
    frozen = next(part for part in encoder.model.modules() if isinstance(part, EncoderLayer))
    encoder.model.train()
    frozen.eval()
    assert np.array_equal(encoder.encode(TEXTS), expected)
    assert encoder.model.training
    assert not frozen.training


PROGRAM = """
import resource, torch
from uwaga.encode.inference import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def asked(times=20):
    before = faults()
    for _ in range(times):
        torch.ones(3 << 20)
    return (faults() - before) / times

before = asked()
keep_freed_memory()
asked(1)
print(before, asked())
"""


@pytest.mark.timing
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
def test_blocks_of_a_dozen_megabytes_are_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split())
    assert after < before / 10 + 1  # 12 MB have 3072 pages, where these are not large ones
