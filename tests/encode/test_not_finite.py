"""No vector and no score that is NaN or infinite leaves: the error names the text. Directories in float16 are computed in float32."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_tokenizer import SPECIAL, WORDS

from uwaga import TextEncoder
from uwaga.encode import BatchEncoder
from uwaga.encode.reranker import Reranker
from uwaga.store import SoftDatabase, add_files

DOG = (SPECIAL + WORDS).index("dog")
TEXTS = ["the cat sat", "a dog ran away", "it", "the dog"]
GOOD = ["the cat sat", "it"]
REASON = "has a vector that is NaN or infinite in float32; use another model"


def spoil(model: torch.nn.Module) -> None:
    """Texts with a dog become infinite, and no others."""
    model.embeddings.token_embedding.weight.data[DOG] = torch.inf


@pytest.fixture
def spoilt(encoder: TextEncoder) -> TextEncoder:
    spoil(encoder.model)
    return encoder


@pytest.mark.parametrize(
    "call",
    [
        lambda encoder: encoder.encode(TEXTS, overflow="mean"),
        lambda encoder: list(encoder.stream([TEXTS[:1], TEXTS[1:]])),
        lambda encoder: encoder.encode(TEXTS, spans="sentence"),
        lambda encoder: encoder.encode(TEXTS, output="tokens", normalize=True, overflow="windows"),
    ],
)
def test_the_first_text_whose_vector_is_not_finite_is_named(spoilt: TextEncoder, call) -> None:
    with pytest.raises(ValueError) as caught:
        call(spoilt)
    assert str(caught.value) == f"TextEncoder: document 1 {REASON}"


def test_in_another_dtype_there_is_something_to_do(folder: Path) -> None:
    encoder = TextEncoder.load(folder, dtype=torch.bfloat16)
    spoil(encoder.model)
    with pytest.raises(
        ValueError, match=r"document 1 .* NaN or infinite in bfloat16; set the option dtype to float32$"
    ):
        encoder.encode(TEXTS)


def test_such_texts_are_left_out_as_others_that_cannot_be_encoded(spoilt: TextEncoder) -> None:
    texts = [*TEXTS, ""]
    encoded = list(spoilt.stream([texts[:2], texts[2:]], skip_invalid=True))
    assert [(row.document, row.reason) for part in encoded for row in part.invalid] == [
        (1, REASON), (3, REASON), (4, "is empty")
    ]  # fmt: skip
    assert np.array_equal(np.concatenate([part.vectors for part in encoded]), spoilt.encode(GOOD))
    assert [part.report.document.tolist() for part in encoded] == [[0], [2]]
    (windows,) = spoilt.stream(
        [["it sat on a mat then and then a dog ran", "it"]], overflow="windows", skip_invalid=True
    )
    assert [row.document for row in windows.invalid] == [0]  # one of its windows
    assert np.array_equal(windows.vectors, spoilt.encode(["it"]))
    (tokens,) = spoilt.stream([texts], output="tokens", skip_invalid=True)
    assert torch.equal(tokens.values, spoilt.encode(GOOD, output="tokens").values)
    assert tokens.lengths.tolist() == [5, 3]


def test_batches_name_them(folder: Path) -> None:
    encode = BatchEncoder(folder, shared=False)
    spoil(encode.load().model)
    result = encode({"text": TEXTS})
    assert result["error"].tolist() == [None, REASON, None, REASON]


def test_no_row_of_a_database_has_one(spoilt: TextEncoder, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS))
    with SoftDatabase.create(tmp_path / "db", key_width=16) as db:
        with pytest.raises(ValueError) as caught:
            add_files(db, [file], spoilt, split="line")
        assert str(caught.value) == f"{file}: passage 2: {REASON}"
        added = add_files(db, [file], spoilt, split="line", skip_invalid=True)
        assert (added.added, added.skipped) == (2, [f"{file}: passage {number}: {REASON}" for number in (2, 4)])


def test_scores_are_finite_before_the_sigmoid(write_reranker: Callable[[], Path]) -> None:
    reranker = Reranker.load(write_reranker())
    spoil(reranker.model)
    assert np.isfinite(reranker.scores([("the cat", "it")])).all()
    with pytest.raises(ValueError, match=r"^Reranker: passage 1 has a score that is NaN or infinite in float32; use"):
        reranker.rank("the cat", TEXTS)
    assert reranker.has_sigmoid
    list(reranker.model.parameters())[-1].data.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"passage 0 .* NaN or infinite"):
        reranker.scores([("the cat", "it")])


def _in_float16(folder: Path, factor: float) -> None:
    """Weights in float16 whose activations exceed its largest number."""
    weights = load_file(folder / "model.safetensors")
    grown = ("intermediate.dense.weight", "output.dense.weight")
    save_file(
        {
            name: (x * factor if name.endswith(grown) and "attention" not in name else x).half()
            for name, x in weights.items()
        },
        folder / "model.safetensors",
    )


def test_a_directory_in_float16_is_computed_in_float32(folder: Path) -> None:
    _in_float16(folder, 5000.0)
    truth = TextEncoder.load(folder, dtype=torch.float64).encode(TEXTS)
    for shared in (False, True, True):
        encoder = TextEncoder.load(folder, shared=shared)
        assert {x.dtype for x in encoder.model.parameters()} == {torch.float32}
        np.testing.assert_allclose(encoder.encode(TEXTS), truth, rtol=1e-4, atol=1e-5)
    assert np.array_equal(BatchEncoder(folder, dtype=None)({"text": TEXTS})["vector"], encoder.encode(TEXTS))
    with pytest.raises(ValueError, match=r"document 0 .* infinite in float16"):
        TextEncoder.load(folder, dtype=torch.float16).encode(TEXTS)


def test_a_reranker_in_float16_is_computed_in_float32(write_reranker: Callable[[], Path]) -> None:
    folder = write_reranker()
    _in_float16(folder, 5000.0)
    pairs = [("the cat", text) for text in TEXTS]
    assert np.array_equal(Reranker.load(folder).scores(pairs), Reranker.load(folder, dtype=torch.float32).scores(pairs))
    with pytest.raises(
        ValueError, match=r"passage 0 has a score that is NaN or infinite in float16; set the option dtype to float32$"
    ):
        Reranker.load(folder, dtype=torch.float16).scores(pairs)
