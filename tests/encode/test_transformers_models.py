"""TextEncoder with families that are not uwaga's own: transformers' model, and batch 1 of sentence-transformers as the truth.

Letters: R texts, M width.
"""

import contextlib
import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import factory

from uwaga import TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.models import opening
from uwaga.models.checkpoints import transformers_directories

transformers = pytest.importorskip("transformers", minversion="5")
peer = pytest.importorskip("sentence_transformers", minversion="6")
from sentence_models import alone, assert_vectors_are_theirs, save_model, save_modules  # noqa: E402
from sentence_transformers.base.modules import Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402
from tiny_models import SHARED, small  # noqa: E402
from tiny_tokenizer import write_tokenizer  # noqa: E402

TEXTS = [
    "the cat sat on the mat .",
    "a dog",
    "then it ran away from the house , unbelievable , and on the mat the cat sat and sat and then the dog ran away",
    "cat",
    "it ran .",
    "mat on mat",
]
_WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_DECODER = _WIDE | {"num_key_value_heads": 2}
PACKED, ONE_BY_ONE = "transformers, packed", "transformers, one by one"
# By name: the family, its settings, how it runs, and why not packed.
CASES: dict[str, tuple[str, dict, str, str]] = {
    "deberta": ("deberta-v2", _WIDE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 8}, ONE_BY_ONE, "computes attention by itself"),
    "funnel": ("funnel", {"d_model": 32, "d_head": 8, "n_head": 4, "d_inner": 48, "block_sizes": [1, 1], "num_decoder_layers": 1, "architectures": ["FunnelModel"]}, ONE_BY_ONE, "computes attention by itself"),
    "xlnet": ("xlnet", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, ONE_BY_ONE, "computes attention by itself"),
    "big bird": ("big_bird", _WIDE | {"attention_type": "original_full"}, ONE_BY_ONE, "computes attention by itself"),
    "convbert": ("convbert", _WIDE | {"embedding_size": 32}, ONE_BY_ONE, "computes attention by itself"),
    "mobilebert": ("mobilebert", _WIDE | {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}, ONE_BY_ONE, "mixes the texts of a row"),
    "prenorm": ("roberta-prelayernorm", _WIDE | {"max_position_embeddings": 65}, PACKED, ""),
    "data2vec": ("data2vec-text", _WIDE | {"max_position_embeddings": 65}, PACKED, ""),
    "phi": ("phi", _DECODER, PACKED, ""),
    "olmo": ("olmo2", _DECODER, PACKED, ""),
    "starcoder": ("starcoder2", _DECODER | {"sliding_window": 8}, PACKED, ""),
    # A Llama that the table refuses.
    "not ours": ("llama", _DECODER | {"hidden_act": "relu2"}, PACKED, ""),
    "experts": ("mixtral", _DECODER | {"num_local_experts": 4}, ONE_BY_ONE, "which may give a text other bits beside others"),
    "umt5": ("umt5", {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4}, ONE_BY_ONE, "makes a bias of the whole row"),
}  # fmt: skip
_WITHOUT = {("xlnet", "max_position_embeddings")}  # there is no limit
# XLNet and Funnel tell the last and the first special token apart by a type of its own.
_TYPED = {"funnel": "[CLS]:2 $A:0 [SEP]:0", "xlnet": "$A:0 [SEP]:0 [CLS]:2"}


@factory
def make(tmp_path: Path, /, case: str) -> Path:
    """A directory that transformers and sentence-transformers saved."""
    family, settings, _, _ = CASES[case]
    folder = tmp_path / "transformer"
    shared = {"vocab_size": 64, "type_vocab_size": 3, "max_position_embeddings": 64}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    values = {name: x for name, x in (shared | ids | settings).items() if (case, name) not in _WITHOUT}
    model = save_model(folder, family, "UMT5EncoderModel" if family == "umt5" else "AutoModel", **values)
    types = ["token_type_ids"] if case in _TYPED else []  # as the tokenizers of these families say
    named = {"model_input_names": ["input_ids", *types, "attention_mask"]}
    single = _TYPED.get(case, "[CLS] $A [SEP]")
    write_tokenizer(folder, single=single, model_max_length=64, tokenizer_class="PreTrainedTokenizerFast", **named)
    modules = [Transformer(str(folder)), Pooling(model.config.hidden_size, "mean"), Normalize()]
    return save_modules(tmp_path / "saved", *modules, prompts={"query": "the dog : "})


@pytest.mark.gate(only=lambda case: case in ("deberta", "xlnet", "mobilebert", "phi", "not ours", "experts", "umt5"))
@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_sentence_transformers_with_the_same_bits_alone(case: str, make: Callable) -> None:
    _, _, engine, why = CASES[case]
    encoder = assert_vectors_are_theirs(make(case), TEXTS)
    choice = encoder.explain()
    assert choice.engine == engine
    assert why in choice.refused.get(PACKED, "")
    vectors = encoder.encode(TEXTS)
    assert repr(encoder.report) == f"Report(6 rows; {encoder.report.summary}; {engine})"
    assert np.array_equal(vectors, encoder.encode(TEXTS, tokens_per_batch=10))


def test_bits_in_bfloat16_and_on_several_threads(make: Callable) -> None:
    """Of activations and rotary positions too, whose numbers PyTorch shares among threads: here there are enough of them."""
    folder, many = make("phi"), TEXTS * 60
    for dtype in (torch.float32, torch.bfloat16):
        encoder = TextEncoder.load(folder, dtype=dtype)
        assert encoder.explain().engine == PACKED
        vectors = encoder.encode(many)
        assert np.array_equal(vectors[: len(TEXTS)], alone(encoder, TEXTS))
        torch.set_num_threads(3)
        assert np.array_equal(encoder.encode(many, tokens_per_batch=1 << 20), vectors)
        assert np.array_equal(encoder.encode(TEXTS[2:3]), vectors[2:3])
        torch.set_num_threads(1)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        TextEncoder.load(folder)
    return str(caught.value)


def described(folder: Path, **settings: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return path


def test_code_of_a_directory_is_not_run(make: Callable) -> None:
    folder = make("deberta")
    expected = TextEncoder.load(folder).encode(TEXTS)
    (folder / "modeling.py").write_text("raise SystemExit('this code was run')")
    described(folder, auto_map={"AutoModel": "modeling.NewModel", "AutoConfig": "modeling.NewConfig"})
    assert np.array_equal(TextEncoder.load(folder).encode(TEXTS), expected)
    described(folder, model_type="new")
    assert "The code that comes with it is never run here" in refusal(folder)


@pytest.mark.parametrize(
    ("case", "key", "number"),
    [
        ("deberta", "num_labels", 10**9),  # each of which gets two names, even where the tokenizer alone is read
        ("starcoder", "num_hidden_layers", 10**9),
        ("experts", "num_local_experts", 10**6),
        ("funnel", "block_sizes", 10**5),
        ("experts", "intermediate_size", 10**5),
    ],
)
def test_numbers_of_any_key_end_in_a_named_error(make: Callable, case: str, key: str, number: int) -> None:
    folder = make(case)
    path = described(folder, **{key: [number, 1] if key == "block_sizes" else number})
    what = f"{key} is {number}, more than the limit of " if number > 300_000 else "it asks for far more than the files"
    assert refusal(folder).startswith(f"{path}: {what}")


def places(value: object, at: tuple = ()) -> Iterator[tuple]:
    """Where whole numbers are in a config.json, or could be; of a list the first entry."""
    if isinstance(value, dict | list):
        for key, inner in [*value.items()] if isinstance(value, dict) else [*enumerate(value)][:1]:
            yield from places(inner, (*at, key))
    elif value is None or type(value) is int:
        yield at


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_every_number_of_every_family_is_bounded(tmp_path: Path) -> None:
    """It ends, without a pause of minutes and gigabytes, in a CheckpointError, or the model is the one of the files."""
    families = 0
    for family in sorted(config.model_type for config in transformers.MODEL_MAPPING):
        folder = tmp_path / family
        try:
            config = transformers.AutoConfig.for_model(family, **SHARED | small(family))
            with torch.device("meta"):
                if sum(x.numel() for x in transformers.AutoModel.from_config(config).parameters()) > 5_000_000:
                    continue
            transformers.AutoModel.from_config(config).save_pretrained(folder)
            opening.read_module(folder, None, "states")
        except Exception:  # noqa: BLE001  # whatever a family wants that is not said here, or that is refused
            continue
        families += 1
        described = json.loads((folder / "config.json").read_text())
        for *path, last in places(described):
            for number in (10**5, 3 * 10**5, 10**6, 10**7):
                changed = copy.deepcopy(described)
                inner = changed
                for key in path:
                    inner = inner[key]
                inner[last] = number
                (folder / "config.json").write_text(json.dumps(changed))
                with contextlib.suppress(CheckpointError):
                    opening.read_module(folder, None, "states")
        shutil.rmtree(folder)
    assert families > 100


def test_a_directory_in_float16_is_computed_in_float32(make: Callable[[str], Path]) -> None:
    """sentence-transformers computes in the dtype that is stored. Its float64 of these weights is the truth, to which float32 is nearer."""
    saved = make("phi")
    half = peer.SentenceTransformer(str(saved), device="cpu").half()
    half.save(str(saved))
    theirs = peer.SentenceTransformer(str(saved), device="cpu")
    assert next(theirs.parameters()).dtype is torch.float16
    truth = peer.SentenceTransformer(str(saved), device="cpu").double().encode(TEXTS, batch_size=1)
    encoder = TextEncoder.load(saved)
    assert {x.dtype for x in encoder.model.parameters()} == {torch.float32}
    ours, others = (np.abs(rows - truth).max() for rows in (encoder.encode(TEXTS), theirs.encode(TEXTS, batch_size=1)))
    assert ours < 1e-5 < others


def test_a_key_that_our_table_refuses_is_named(folder: Path) -> None:
    """Before transformers, which reads it otherwise."""
    described(folder, num_attention_heads=-1)
    assert "num_attention_heads must be " in refusal(folder)


def test_a_model_of_few_tokens_and_positions_is_tried_within_them(write_model, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    expected = TextEncoder.load(folder).encode(["the cat"])
    described = json.loads((folder / "config.json").read_text())
    assert described["max_position_embeddings"] < 17
    (folder / "config.json").write_text(json.dumps(described | {"architectures": [1]}))
    encoder = TextEncoder.load(folder)
    assert encoder.explain().engine == ONE_BY_ONE
    assert np.allclose(encoder.encode(["the cat"]), expected, atol=1e-5)


def test_reading_in_two_threads_leaves_the_logging_of_transformers_as_it_was(make: Callable) -> None:
    logging, folder = transformers.utils.logging, make("prenorm")
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    first, second = (transformers_directories.reading(folder) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert logging.get_verbosity() == logging.CRITICAL
    second.__exit__(None, None, None)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
