"""The promise of DESIGN.md, "What a call means", through whole models: a row has the same bits alone, in any batch, watched or not, by
the default engines of the processor that is there, and of a pretended Intel processor with AMX, whose foreign products depend on the
number of rows (tests/foreign.py).

bfloat16 is under it where the native kernels come first; elsewhere `explain` says in words that it is not.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import foreign
import numpy as np
import processors
import pytest
import torch
from engines import needs_native
from tiny_transformer import tiny
from torch import Tensor, nn

import uwaga
from uwaga import Links, Ragged, TextEncoder
from uwaga._base.processor import Processor
from uwaga.ops.linear import explain

pytestmark = needs_native

# As MiniLM: MKL on an Intel processor with AMX has other bits for other numbers of rows in 1536 -> 384.
_WIDE = {"d_model": 384, "num_heads": 12, "d_ff": 1536, "num_layers": 1}
_SIZES = {"vocab_size": 60, "max_position_embeddings": 80}
_SMALL = {"d_model": 64, "num_heads": 4, "d_ff": 128, "num_layers": 2}
LENGTHS = (1, 2, 3, 7, 1, 33, 70)
ANSWERS = (3, 1, 2, 5, 7, 1, 9)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: tiny("bert", **_SIZES, outputs=("pooled", "logits", "sequence"), **_WIDE),
    "gpt2": lambda: tiny("gpt2", **_SIZES, **_SMALL),
    "t5": lambda: tiny("t5", vocab_size=60, d_k=16, **_SMALL),
    "t5 gated": lambda: tiny(
        "t5", vocab_size=60, num_decoder_layers=1, d_k=16, gated=True, activation="gelu_tanh", **_SMALL
    ),
}
models = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(params=["this processor", "an Intel processor with AMX"])
def here(request: pytest.FixtureRequest, on: Callable[[Processor], None]) -> Iterator[str]:
    if request.param == "this processor":
        yield request.param
        return
    on(processors.SAPPHIRE_RAPIDS)
    with foreign.ForeignKernels():
        yield request.param


both = pytest.mark.usefixtures("here")


def _model(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.dim() == 1:  # biases that are not 0, and norms that are not 1
            parameter.add_(torch.randn(parameter.shape).to(dtype) * 0.1)
    return model


def _documents(model: nn.Module) -> list[list[Tensor]]:
    """The texts, and where the model has a decoder their answers."""
    torch.manual_seed(1)
    return [
        [torch.randint(3, 60, (length,)) for length in lengths]
        for lengths in (LENGTHS, ANSWERS)[: 2 if model.config.has_both else 1]
    ]


def _tensors(output: Sequence, row: int | None = None) -> list[Tensor]:
    """What is in an output, of all rows or of one."""
    results: list[Tensor] = []
    for field in output:
        if isinstance(field, tuple):
            results += _tensors(field, row)
        elif isinstance(field, Ragged):
            results.append(field.values if row is None else field.to_list()[row])
        elif field is not None:
            results.append(field if row is None else field[row])
    return results


def _assert_equal(result: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert result
    for ours, theirs in zip(result, expected, strict=True):
        assert torch.equal(ours, theirs)


def _assert_alone_as_in_the_batch(model: nn.Module) -> None:
    documents = _documents(model)
    together = model(*map(Ragged.from_list, documents))
    for row in range(len(LENGTHS)):
        alone = model(*(Ragged.from_list(texts[row : row + 1]) for texts in documents))
        _assert_equal(_tensors(alone, 0), _tensors(together, row))


@both
@models
def test_a_packed_batch_has_the_bits_of_its_texts(name: str) -> None:
    _assert_alone_as_in_the_batch(_model(name))


@both
@models
def test_rows_of_one_length_have_the_bits_of_each_alone(name: str) -> None:
    """Dense attention, as of a batch without padding."""
    model = _model(name)
    torch.manual_seed(1)
    ids = [torch.randint(3, 60, (5, 12))] + ([torch.randint(3, 60, (5, 4))] if model.config.has_both else [])
    together = model(*ids)
    for row in range(5):
        _assert_equal(_tensors(model(*(x[row : row + 1] for x in ids)), 0), _tensors(together, row))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@models
def test_the_16_bit_types_keep_the_promise(name: str, dtype: torch.dtype) -> None:
    x = torch.zeros(3, 8, dtype=dtype)
    assert "other bits" not in explain(x, x).reason
    _assert_alone_as_in_the_batch(_model(name, dtype))


@both
def test_a_text_has_the_same_vectors_alone_and_in_a_batch(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    encoder = TextEncoder.load(write_model(tmp_path / "wide", **_WIDE))
    texts = ["the cat sat on the mat.", "a", "then it ran away from the house", "un", "the dog, and the cat", "it sat"]
    together, tokens = encoder.encode(texts), encoder.encode(texts, output="tokens").to_list()
    for row, text in enumerate(texts):
        assert np.array_equal(encoder.encode([text])[0], together[row])
        assert torch.equal(encoder.encode([text], output="tokens").values, tokens[row])
    assert np.array_equal(encoder.encode(texts, tokens_per_batch=8), together)


def _kind(name: str) -> str:
    return "decoder" if name == "gpt2" else "encoder"


@both
@models
def test_a_watched_model_and_an_edit_that_changes_nothing_change_no_bit(name: str) -> None:
    model, where = _model(name), (_kind(name), 0, 1)
    documents = _documents(model)
    padded = [torch.stack([text[:1].expand(6) for text in texts]) for texts in documents]
    for batches in ([Ragged.from_list(texts) for texts in documents], padded):
        expected = _tensors(model(*batches))
        with uwaga.watch(model, values=True) as recording:
            _assert_equal(_tensors(model(*batches)), expected)
        assert recording.maps
        for changes in ({"heads": {where: 1.0}}, {"weights": {where: Links((0,), (0,), factor=1.0)}}):
            with uwaga.edit(model, **changes):
                _assert_equal(_tensors(model(*batches)), expected)
        _assert_equal(_tensors(model(*batches)), expected)


@both
@models
def test_an_edited_batch_has_the_bits_of_its_edited_texts(name: str) -> None:
    model = _model(name)
    kind = _kind(name)
    with uwaga.edit(
        model,
        heads={(kind, 0, 1): 0.0, (kind, 0, 2): 0.5},
        scores={(kind, 0, 0): Links(None, (0,)) if kind == "encoder" else Links((0,), ())},
        weights={(kind, 0, 3): Links((0,), (0,), factor=0.5)},
    ):
        _assert_alone_as_in_the_batch(model)


def test_the_pretended_processor_would_show_a_foreign_product(on: Callable[[Processor], None]) -> None:
    """Also if its rows are padded, as on GENOA."""
    weight, x = torch.randn(384, 1536), torch.randn(7, 1536)
    for here in (processors.SAPPHIRE_RAPIDS, processors.GENOA):
        on(here)
        with foreign.ForeignKernels():
            whole = uwaga.linear(x, weight, impl="torch")
            assert not torch.equal(uwaga.linear(x[:3], weight, impl="torch"), whole[:3])
            assert torch.equal(uwaga.linear(x[:3], weight), uwaga.linear(x, weight)[:3])
