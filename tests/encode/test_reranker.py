"""Cross-encoders: scores are those of sentence-transformers' CrossEncoder, and each pair has the same bits in any batch."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_tokenizer import WORDS, write_tokenizer
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga.encode.reranker import Reranker, sigmoid
from uwaga.models import Transformer, config, save

QUERY = "the cat sat on a mat"
PASSAGES = ["a dog ran away", "the cat", "the house, the dog and then the unbelievable cat on the mat.", "it", "it"]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def made(*, model_type: str = "bert", labels: tuple[str, ...] = ("LABEL_0",), **files: object) -> Path:
        folder = tmp_path / "cross"
        torch.manual_seed(0)
        types = {} if model_type == "distilbert" else {"type_vocab_size": 2 if model_type == "bert" else 1}
        described = config(
            model_type, vocab_size=5 + len(WORDS), d_model=64, num_layers=2, num_heads=2, d_ff=64, max_position_embeddings=40,
            outputs=("pooled", "sequence") if model_type == "bert" else ("sequence",), labels=labels, **types,
        )  # fmt: skip
        save(Transformer(described), folder)
        write_tokenizer(folder)
        settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": 30}
        tokenizer_class = {"bert": "BertTokenizer"}.get(model_type, "PreTrainedTokenizerFast")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": tokenizer_class}))
        _add_pairs(folder / "tokenizer.json", types=model_type == "bert")
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return folder

    return made


def _add_pairs(path: Path, *, types: bool) -> None:
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(path))
    second = ":1" if types else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B{second} [SEP]{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(path))


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_scores_are_those_of_sentence_transformers(write, model_type, assert_as_exact) -> None:
    """One pair after another as the truth: theirs in a batch is padded."""
    from sentence_transformers import CrossEncoder

    folder, rng = write(model_type=model_type), random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(98)]
    pairs = [*zip(texts[::2], texts[1::2], strict=True), (" ".join(WORDS[:14] * 3), "the cat " * 20)]
    raw = {"activation_fn": torch.nn.Identity(), "show_progress_bar": False, "convert_to_tensor": True}

    def theirs(dtype: torch.dtype) -> Tensor:
        model = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": dtype})
        return torch.cat([model.predict([pair], **raw) for pair in pairs])

    ours = Reranker.load(folder).scores(pairs, overflow="truncate", raw=True)
    assert_as_exact(torch.from_numpy(ours), theirs(torch.float32), lambda: theirs(torch.float64))


def test_a_pair_has_the_same_bits_alone(write) -> None:
    reranker = Reranker.load(write())
    together = reranker.scores([(QUERY, passage) for passage in PASSAGES])
    alone = [reranker.scores([(QUERY, passage)])[0] for passage in PASSAGES]
    assert together.tobytes() == np.float32(alone).tobytes()


def test_rank_sorts_and_equal_scores_keep_their_order(write) -> None:
    reranker = Reranker.load(write())
    scores = reranker.scores([(QUERY, passage) for passage in PASSAGES])
    ranking = reranker.rank(QUERY, PASSAGES)
    assert ranking.scores.tolist() == sorted(scores.tolist(), reverse=True)
    assert scores[ranking.indices].tolist() == ranking.scores.tolist()
    places = ranking.indices.tolist()
    assert places.index(4) == places.index(3) + 1
    assert reranker.rank(QUERY, PASSAGES, top=2).indices.tolist() == places[:2]
    assert reranker.rank(QUERY, []).scores.shape == (0,)


IDENTITY = "torch.nn.modules.linear.Identity"


def saved(**settings: object) -> dict[str, object]:
    """The files of sentence-transformers that make a directory with a classifier one of its own."""
    return {
        "modules": [{"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""}],
        "config_sentence_transformers": {"model_type": "CrossEncoder"} | settings,
        "sentence_bert_config": {"transformer_task": "sequence-classification"},
    }


@pytest.mark.parametrize(
    ("files", "has_sigmoid"),
    [
        ({}, True),
        (saved(activation_fn=IDENTITY), False),
        (saved(activation_fn="torch.nn.modules.activation.Sigmoid"), True),
        # sentence-transformers reads this file with modules.json alone.
        ({"config_sentence_transformers": {"activation_fn": IDENTITY}}, True),
    ],
)
def test_the_activation_is_the_one_that_the_files_name(write, files, has_sigmoid) -> None:
    reranker = Reranker.load(write(**files))
    pairs = [(QUERY, passage) for passage in PASSAGES]
    raw = reranker.scores(pairs, raw=True)
    expected = 1 / (1 + np.exp(-raw.astype(np.float64))) if has_sigmoid else raw
    np.testing.assert_allclose(reranker.scores(pairs), expected, rtol=2**-24 if has_sigmoid else 0)  # of one rounding


def test_a_sigmoid_neither_overflows_nor_loses_small_numbers() -> None:
    result = sigmoid(np.float32([-1e4, -90, 0, 90, 1e4]))
    assert result.tolist() == [0.0, float(np.float32(np.exp(-90.0))), 0.5, 1.0, 1.0]


def test_directories_of_other_kinds_name_what_takes_them(write, write_model, describe, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from uwaga import TextEncoder
    from uwaga.cli import app

    embedding = write_model(tmp_path / "embedding")
    describe(embedding)
    with pytest.raises(CheckpointError) as caught:
        Reranker.load(embedding)
    assert str(caught.value) == (
        f"{embedding} holds an embedding model, which has no score for a pair: uwaga.TextEncoder, `uwaga encode` and `uwaga serve` take it"
    )
    folder = write()
    (tmp_path / "docs.txt").write_text("the cat\n")
    takes = "uwaga.Reranker, and `uwaga serve` with --reranker, take one with one label"
    with pytest.raises(CheckpointError, match="and TextEncoder cannot use it") as caught:
        TextEncoder.load(folder)
    assert takes in str(caught.value)
    for command in (
        ["encode", str(tmp_path / "docs.txt"), "-o", str(tmp_path / "out.parquet"), "--model", str(folder)],
        ["store", "add", str(tmp_path / "db"), str(tmp_path / "docs.txt"), "--model", str(folder)],
        ["serve", str(folder), "--port", "0"],
        ["serve", str(embedding), "--reranker", str(embedding), "--port", "0"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert (takes if command[1] != str(embedding) else "holds an embedding model") in result.stderr
    assert not (tmp_path / "db").exists()
    assert not (tmp_path / "out.parquet.parts").exists()
    (embedding / "modules.json").write_text(
        json.dumps(
            [
                {"type": f"sentence_transformers.{kind}", "path": path}
                for kind, path in (("Transformer", ""), ("Dense", "1"))
            ]
        )
    )
    with pytest.raises(CheckpointError) as caught:
        Reranker.load(embedding)
    assert str(caught.value) == (
        f"{embedding / 'modules.json'} has modules that Reranker does not compute: Dense; sentence_transformers.CrossEncoder reads it"
    )
    with pytest.raises(ValueError, match="an instruction is for causal language models"):
        Reranker.load(folder, instruction="Find the cat")
