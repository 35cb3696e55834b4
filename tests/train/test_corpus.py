"""The rows of every objective: input ids and labels; their order, as a function of (seed, epoch, step); and the digest of a corpus."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from uwaga.train.corpus import (
    IGNORED,
    Batch,
    Corpus,
    MicroBatch,
    permutation,
    random_bits,
)  # fmt: skip

Make = Callable[..., Corpus]


def _epoch(corpus: Corpus, epoch: int = 0) -> list[Batch]:
    begun = sum(corpus.train.steps_per_epoch(number) for number in range(epoch))
    steps = range(begun, begun + corpus.train.steps_per_epoch(epoch))
    return [corpus.train.batch(micro) for step in steps for micro in corpus.train.micro_batches(step)]


def test_labels_of_a_language_model_have_every_token_once(tmp_path: Path, verses: str, make_corpus: Make) -> None:
    corpus = make_corpus("language-model", [verses], "data.document=paragraph", "data.validation_fraction=0.2")
    asked = torch.cat([batch.labels for batch in [*_epoch(corpus), *corpus.validation.evaluation_batches()]])
    text = (tmp_path / verses).read_text().strip().split("\n\n")
    expected = torch.tensor(
        np.concatenate(corpus.tokenizer.encode(text)).tolist() + [corpus.tokenizer.special.eos] * 60
    )
    assert asked.sort().values.tolist() == expected.sort().values.tolist()


def test_a_row_is_of_one_document_and_its_labels_are_the_next_tokens(verses: str, make_corpus: Make) -> None:
    corpus = make_corpus(
        "language-model", [verses], "data.document=paragraph", "data.context_length=64", "batch.tokens_per_batch=256"
    )
    end = corpus.tokenizer.special.eos
    for batch in _epoch(corpus):
        assert batch.decoder_ids is None
        for ids, expected in zip(batch.ids.to_list(), batch.ids.with_values(batch.labels).to_list(), strict=True):
            assert ids[1:].tolist() == expected[:-1].tolist()
            assert end not in ids[1:]
            assert len(ids) <= 64
    first = next(corpus.validation.evaluation_batches()).ids.to_list()[0]
    assert first[0] == end


def test_windows_start_anywhere_in_the_text(tmp_path: Path, make_corpus: Make) -> None:
    text = "".join(chr(0x4E00 + number) for number in range(1000))
    (tmp_path / "a.txt").write_text(text)
    corpus = make_corpus("language-model", ["a.txt"], "data.windows=true", "batch.tokens_per_step=128")
    starts = []
    for epoch in range(3):
        for batch in _epoch(corpus, epoch):
            assert batch.ids.lengths.tolist() == [16, 16, 16, 16]
            for ids, expected in zip(batch.ids.to_list(), batch.labels.split(16), strict=True):
                assert expected.tolist() == [number + 1 for number in range(int(ids[0]), int(ids[0]) + 16)]
                starts.append(int(ids[0]) - 2)
    assert len(starts) == 3 * corpus.train.steps_per_epoch(0) * 8
    assert 0 <= min(starts) < 40
    assert 840 < max(starts) <= 900 - 17
    assert len(set(starts)) > 0.8 * len(starts)


def test_texts_are_joined_by_an_end_token_for_windows(tmp_path: Path, make_corpus: Make) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("0123456789" * 5)
    valid = f"data.validation=['{tmp_path / 'a.txt'}']"
    corpus = make_corpus("language-model", ["a.txt", "b.txt"], "data.windows=true", valid)
    folder = next((tmp_path / "prepared").glob("data-*"))
    tokens = np.fromfile(folder / "train.tokens", "<u2")
    assert np.flatnonzero(tokens == corpus.tokenizer.special.eos).tolist() == [50]


@pytest.mark.parametrize("target", ["{kind='words'}", "{kind='words', shared=true}"])
def test_decoder_ids_begin_with_padding_and_labels_end_with_eos(target: str, words: str, make_corpus: Make) -> None:
    options = (
        "data.pair_format=cmudict",
        "data.remove_characters='012'",
        f"tokenizer.target={target}",
        "tokenizer.lowercase=true",
    )
    corpus = make_corpus("encoder-decoder", [words], *options)
    special = corpus.target_tokenizer.special
    rows = 0
    for batch in _epoch(corpus):
        assert batch.tokens <= 64
        labels = batch.decoder_ids.with_values(batch.labels).to_list()
        for source, read, asked in zip(batch.ids.to_list(), batch.decoder_ids.to_list(), labels, strict=True):
            assert source[-1] == corpus.tokenizer.special.eos
            assert read[0] == special.pad
            assert read[1:].tolist() == asked[:-1].tolist()
            assert asked[-1] == special.eos
            assert corpus.target_tokenizer.decode(read.tolist()).split()[0] == "K"
            rows += 1
    assert rows == len(corpus.train)


def test_masks_have_the_proportions_of_bert(tmp_path: Path, make_corpus: Make) -> None:
    generator = np.random.default_rng(0)
    lines = ("".join(chr(0x4E00 + x) for x in generator.integers(0, 500, 200)) for _ in range(60))
    (tmp_path / "a.txt").write_text("\n".join(lines))
    sizes = ("data.document=line", "data.context_length=64", "batch.tokens_per_batch=1024")
    corpus = make_corpus("masked-language-model", ["a.txt"], *sizes)
    special = corpus.tokenizer.special
    original = {tuple(ids) for ids in _originals(corpus)}
    asked = masked = kept = 0
    for batch in _epoch(corpus):
        for ids, labels in zip(batch.ids.to_list(), batch.ids.with_values(batch.labels).to_list(), strict=True):
            assert (ids[0], ids[-1]) == (special.cls, special.sep)
            assert (labels[0], labels[-1]) == (IGNORED, IGNORED)
            chosen = labels != IGNORED
            assert int(chosen.sum()) == max(1, round((len(ids) - 2) * 0.15))
            assert tuple(torch.where(chosen, labels, ids)[1:-1].tolist()) in original
            asked += int(chosen.sum())
            masked += int((ids[chosen] == special.mask).sum())
            kept += int((ids[chosen] == labels[chosen]).sum())
    assert asked > 1400
    assert abs(masked / asked - 0.8) < 0.06
    assert abs(kept / asked - 0.1) < 0.04


def _originals(corpus: Corpus) -> list[list[int]]:
    rows = corpus.train.rows
    results = []
    for row in range(len(rows.lengths)):
        batch = rows.batch(0, [row])
        results.append(torch.where(batch.labels == IGNORED, batch.ids.values, batch.labels)[1:-1].tolist())
    return results


def test_masks_differ_between_epochs_and_validation_masks_do_not(verses: str, make_corpus: Make) -> None:
    corpus, seeded = (
        make_corpus("masked-language-model", [verses], "data.document=paragraph", f"run.seed={seed}") for seed in (0, 5)
    )
    first, same, other = (corpus.train.rows.batch(epoch, range(10)) for epoch in (0, 0, 1))
    assert torch.equal(first.labels, same.labels)
    assert torch.equal(first.ids.values, same.ids.values)
    assert not torch.equal(first.labels, other.labels)
    assert not torch.equal(first.labels, seeded.train.rows.batch(0, range(10)).labels)
    ours, theirs = (
        torch.cat([batch.labels for batch in prepared.validation.evaluation_batches()]) for prepared in (corpus, seeded)
    )
    assert torch.equal(ours, theirs)


# The order of an epoch: every row once, full micro-batches, a function of (seed, epoch).


def test_random_bits_are_the_same_on_every_machine() -> None:
    assert random_bits(2, "order", 0, 1).tolist() == [258815424940938134, 7331967237378934650]
    assert permutation(6, "order", 1, 0).tolist() == [1, 5, 0, 4, 3, 2]


# The batches of a step, evaluation, and the digest.


_VERSES = (
    "data.document=paragraph",
    "batch.tokens_per_batch=64",
    "batch.tokens_per_step=192",
    "data.validation_fraction=0.2",
)


def test_an_epoch_has_every_row_once_in_whole_steps_that_earlier_requests_do_not_change(
    verses: str, make_corpus: Make
) -> None:
    one, other, seeded = (make_corpus("language-model", [verses], *_VERSES, f"run.seed={seed}") for seed in (0, 0, 1))
    train, step, firsts = one.train, 0, [seeded.train.micro_batches(0)[0].rows]
    for epoch in range(3):
        micros: list[list[MicroBatch]] = []
        for _ in range(train.steps_per_epoch(epoch)):
            micros.append(train.micro_batches(step))
            step += 1
        assert {micro.epoch for batches in micros for micro in batches} == {epoch}
        assert sorted(row for batches in micros for micro in batches for row in micro.rows) == list(range(len(train)))
        assert {len(micro) for micro in micros[:-1]} == {3}
        assert [micro.number for micro in micros[0]] == [0, 1, 2]
        firsts.append(micros[0][0].rows)
    assert len(set(firsts)) == 4
    backwards = [other.train.micro_batches(n) for n in reversed(range(step))]
    assert backwards[::-1] == [train.micro_batches(n) for n in range(step)]
    micro = backwards[0][0]
    assert torch.equal(train.batch(micro).ids.values, other.train.batch(micro).ids.values)


def test_evaluation_has_all_rows_in_order_or_evenly_spaced_ones(verses: str, make_corpus: Make) -> None:
    valid = make_corpus("language-model", [verses], *_VERSES).validation
    whole = [row.tolist() for batch in valid.evaluation_batches() for row in batch.ids.to_list()]
    assert len(whole) == len(valid)
    assert [row.tolist() for batch in valid.evaluation_batches(10**9) for row in batch.ids.to_list()] == whole
    some = [row.tolist() for batch in valid.evaluation_batches(100) for row in batch.ids.to_list()]
    assert [row for row in whole if row in some] == some
    assert abs(sum(map(len, some)) - 100) <= 32
    assert some[-1] not in whole[: len(whole) // 2]
    assert len(list(valid.evaluation_batches(1))) == 1


def test_questions_have_every_target_of_the_held_out_words(words: str, make_corpus: Make) -> None:
    overrides = (
        "data.pair_format=cmudict",
        "data.remove_characters='012'",
        "tokenizer.target.kind=words",
        "data.validation_fraction=0.5",
    )
    corpus = make_corpus("encoder-decoder", [words], *overrides)
    questions = list(corpus.questions())
    assert len({source for source, _ in questions}) == len(questions)
    assert sum(len(targets) for _, targets in questions) == len(corpus.validation)
    assert any(len(targets) == 2 for _, targets in questions)
    assert all(target.startswith("K A") and "1" not in target[:5] for _, targets in questions for target in targets)


def test_the_digest_is_of_the_settings_that_change_batches(verses: str, make_corpus: Make) -> None:
    plain = make_corpus("language-model", [verses], *_VERSES[:1]).digest
    for change in ("optimizer.lr=1", "schedule.steps=9", "run.log_every=1", "data.download=true"):
        assert make_corpus("language-model", [verses], *_VERSES[:1], change).digest == plain
    for change in (
        "run.seed=1", "data.context_length=8", "batch.tokens_per_batch=128", "tokenizer.lowercase=true", "data.validation_fraction=0.3",
    ):  # fmt: skip
        assert make_corpus("language-model", [verses], *_VERSES[:1], change).digest != plain
