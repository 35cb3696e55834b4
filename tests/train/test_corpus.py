"""Batches as a function of (seed, epoch, step), the order of evaluation, and the digest of a corpus."""

from collections.abc import Callable

import pytest
import torch

from uwaga.train.corpus import Corpus, MicroBatch

Make = Callable[..., Corpus]
_VERSES = (
    "data.document=paragraph",
    "batch.tokens_per_batch=64",
    "batch.tokens_per_step=192",
    "data.validation_fraction=0.2",
)


def test_the_batches_of_a_step_do_not_depend_on_earlier_requests(verses: str, make_corpus: Make) -> None:
    one, other = (make_corpus("language-model", [verses], *_VERSES) for _ in range(2))
    count = 2 * one.train.steps_per_epoch(0) + 3
    forwards = [one.train.micro_batches(step) for step in range(count)]
    assert [other.train.micro_batches(step) for step in reversed(range(count))] == forwards[::-1]
    for micro in forwards[-1]:
        assert torch.equal(one.train.batch(micro).ids.values, other.train.batch(micro).ids.values)


def test_an_epoch_has_every_row_once_in_whole_steps(verses: str, make_corpus: Make) -> None:
    train = make_corpus("language-model", [verses], *_VERSES).train
    step, firsts = 0, [make_corpus("language-model", [verses], *_VERSES, "run.seed=1").train.micro_batches(0)[0].rows]
    for epoch in range(3):
        micros: list[list[MicroBatch]] = []
        for _ in range(train.steps_per_epoch(epoch)):
            micros.append(train.micro_batches(step))
            step += 1
        assert {micro.epoch for each in micros for micro in each} == {epoch}
        assert sorted(row for each in micros for micro in each for row in micro.rows) == list(range(len(train)))
        assert {len(each) for each in micros[:-1]} == {3}
        assert [micro.number for micro in micros[0]] == [0, 1, 2]
        firsts.append(micros[0][0].rows)
    assert len(set(firsts)) == 4


def test_a_micro_batch_has_at_most_tokens_per_batch_tokens(verses: str, make_corpus: Make) -> None:
    train = make_corpus("language-model", [verses], *_VERSES).train
    sizes = [
        train.batch(micro).tokens for step in range(train.steps_per_epoch(0)) for micro in train.micro_batches(step)
    ]
    assert max(sizes) <= 64
    assert sum(sizes[:-1]) / len(sizes[:-1]) > 64 - 16


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
    given = (
        "data.pair_format=cmudict",
        "data.remove_characters='012'",
        "tokenizer.target.kind=words",
        "data.validation_fraction=0.5",
    )
    corpus = make_corpus("encoder-decoder", [words], *given)
    questions = list(corpus.questions())
    assert len({source for source, _ in questions}) == len(questions)
    assert sum(len(targets) for _, targets in questions) == len(corpus.validation)
    assert any(len(targets) == 2 for _, targets in questions)
    assert all(target.startswith("K A") and "1" not in target[:5] for _, targets in questions for target in targets)


def test_all_tensors_of_a_batch_move_to_a_device(words: str, make_corpus: Make) -> None:
    corpus = make_corpus("encoder-decoder", [words], "data.pair_format=cmudict")
    batch = corpus.train.batch(corpus.train.micro_batches(0)[0])
    (ids, decoder_ids, labels, positions), scored = batch.inputs(torch.device("meta"))
    assert {labels.device.type, ids.values.device.type, decoder_ids.offsets.device.type} == {"meta"}
    assert (positions, scored) == (None, len(labels))
    assert batch.tokens == batch.ids.values.numel() + batch.labels.numel()


@pytest.mark.parametrize(
    "change",
    [
        "run.seed=1",
        "data.context_length=8",
        "batch.tokens_per_batch=128",
        "tokenizer.lowercase=true",
        "data.validation_fraction=0.3",
    ],
)
def test_settings_of_the_batches_change_the_digest(change: str, verses: str, make_corpus: Make) -> None:
    plain = make_corpus("language-model", [verses], *_VERSES[:1])
    assert make_corpus("language-model", [verses], *_VERSES[:1], change).digest != plain.digest


@pytest.mark.parametrize("change", ["optimizer.lr=1", "schedule.steps=9", "run.log_every=1", "data.download=true"])
def test_other_settings_do_not_change_the_digest(change: str, verses: str, make_corpus: Make) -> None:
    plain = make_corpus("language-model", [verses], *_VERSES[:1])
    assert make_corpus("language-model", [verses], *_VERSES[:1], change).digest == plain.digest
