"""The validation split: chosen by a hash of the content, so that it does not depend on order or place."""

from collections.abc import Callable
from pathlib import Path

from uwaga.data.documents import DocumentFile
from uwaga.train.config import DataConfig
from uwaga.train.data.corpus import Corpus
from uwaga.train.data.splits import VALIDATION, is_validation, is_validation_source, split_documents, split_pairs


def _files(*train: Path) -> dict[str, tuple[Path, ...]]:
    return {"train": train, "validation": (), "target": (), "validation_target": ()}


def test_a_fraction_of_the_words_is_held_out_and_stays_the_same() -> None:
    words = [f"word{number}" for number in range(20_000)]
    held = [word for word in words if is_validation_source(word, 0.1)]
    assert abs(len(held) - 2000) < 5 * (20_000 * 0.1 * 0.9) ** 0.5
    assert held[:5] == ["word21", "word77", "word79", "word113", "word139"]
    assert set(held) <= {word for word in words if is_validation_source(word, 0.2)}


def test_a_validation_fraction_of_zero_holds_out_nothing() -> None:
    assert not is_validation(bytes(32), 0.0)


def test_all_pronunciations_of_a_word_are_in_one_split(tmp_path: Path, words: str) -> None:
    data = DataConfig(kind="pairs", pair_format="cmudict", validation_fraction=0.3)
    splits: dict[str, set[str]] = {}
    for split, pair in split_pairs(_files(tmp_path / words), data):
        splits.setdefault(pair.source, set()).add(split)
    assert all(len(each) == 1 for each in splits.values())
    assert 40 < sum(VALIDATION in each for each in splits.values()) < 140


def test_the_split_of_a_document_does_not_depend_on_its_place(tmp_path: Path, verses: str) -> None:
    data = DataConfig(document="paragraph", validation_fraction=0.3)
    whole = {"".join(each.document.pieces): each.split for each in split_documents(_files(tmp_path / verses), data)}
    backwards = tmp_path / "backwards.txt"
    backwards.write_text("\n\n".join(reversed(list(whole))))
    again = {"".join(each.document.pieces): each.split for each in split_documents(_files(backwards), data)}
    assert again == whole


def test_with_windows_the_end_of_the_text_is_held_out(tmp_path: Path, verses: str) -> None:
    (tmp_path / "more.txt").write_text("And this is the end.")
    data = DataConfig(windows=True, validation_fraction=0.25)
    paths = (tmp_path / verses, tmp_path / "more.txt")
    results = [(each.split, "".join(each.document.pieces)) for each in split_documents(_files(*paths), data)]
    text = "".join("".join(each.pieces) for path in paths for each in DocumentFile(path, unit="file"))
    assert "".join(part for split, part in results if split == VALIDATION) == text[int(len(text) * 0.75) :]
    assert "".join(part for _, part in results) == text


def test_with_validation_files_no_training_text_is_held_out(
    tmp_path: Path, verses: str, make_corpus: Callable[..., Corpus]
) -> None:
    (tmp_path / "valid.txt").write_text("Line 9 of 9.\n\nAnd another one.")
    valid = f"data.validation=['{tmp_path / 'valid.txt'}']"
    corpus = make_corpus("language-model", [verses], "data.document=paragraph", valid, "data.context_length=64")
    assert len(corpus.validation) == 2
    assert (
        corpus.tokenizer.decode(next(corpus.validation.evaluation_batches()).ids.to_list()[1].tolist())
        == "And another one."
    )
