"""The loss of every model family: equal to cross_entropy over all logits, also where it is computed in blocks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import uwaga
from uwaga.models import config
from uwaga.train import model as model_module
from uwaga.train.corpus import Batch
from uwaga.train.model import Objective, new_model

CPU = torch.device("cpu")
SIZES = {"vocab_size": 30, "d_model": 16, "num_heads": 2, "d_ff": 32}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: new_model(config("gpt2", **SIZES, num_layers=1, max_position_embeddings=20), 0),
    "gpt2-untied": lambda: new_model(config("gpt2", **SIZES, num_layers=1, max_position_embeddings=20, tie_word_embeddings=False), 0),
    "bert": lambda: new_model(config("bert", **SIZES, num_layers=1, max_position_embeddings=20, outputs=("logits",)), 0),
    "t5": lambda: new_model(config("t5", **SIZES, num_layers=1, num_decoder_layers=1, d_k=8), 0),
    "transformer": lambda: new_model(config("uwaga-transformer", **SIZES, num_layers=1, num_decoder_layers=1, decoder_vocab_size=25), 0),
    "decoder": lambda: new_model(config("uwaga-transformer", **SIZES, num_layers=0, num_decoder_layers=1), 0),
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


def batch(name: str) -> Batch:
    ids = uwaga.Ragged.from_list([torch.arange(3, 12), torch.tensor([5]), torch.arange(2, 9)])
    pairs = name in ("t5", "transformer")
    decoder = (
        uwaga.Ragged.from_list([torch.tensor([0, 4, 5]), torch.tensor([0, 9]), torch.tensor([0])]) if pairs else None
    )
    labels = (decoder or ids).values.flip(0).clone()
    labels[1::3] = -100
    return Batch(ids=ids, decoder_ids=decoder, labels=labels)


def logits(model: nn.Module, x: Batch) -> Tensor:
    return model(x.ids, x.decoder_ids).logits.values


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", MODELS)
def test_it_equals_cross_entropy_over_all_logits(name: str, smoothing: float) -> None:
    model, x = MODELS[name](), batch(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    expected = functional.cross_entropy(logits(model, x), x.labels, reduction="sum", label_smoothing=smoothing)
    result = Objective(model, smoothing)(*x.inputs(CPU)[0])
    torch.testing.assert_close(result, expected)
    wanted, got = (torch.autograd.grad(loss, list(model.parameters())) for loss in (expected, result))
    for a, b in zip(wanted, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_of_logits_give_the_same_loss_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = MODELS[name]().eval(), batch(name).inputs(CPU)[0]
    whole = Objective(model)(*x)
    expected = torch.autograd.grad(whole, list(model.parameters()))
    monkeypatch.setattr(model_module, "_MOST_LOGITS", 60)
    blocked = Objective(model)(*x)
    torch.testing.assert_close(blocked, whole)
    for a, b in zip(expected, torch.autograd.grad(blocked, list(model.parameters())), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(Objective(model)(*x), whole)


def test_evaluation_has_no_label_smoothing() -> None:
    model, x = MODELS["gpt2"](), batch("gpt2").inputs(CPU)[0]
    smooth, plain = (Objective(model, smoothing).eval()(*x) for smoothing in (0.3, 0.0))
    assert torch.equal(smooth, plain)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_without_labels_has_a_loss_and_gradients_of_zero(name: str) -> None:
    model, x = MODELS[name](), batch(name)
    arguments, scored = x.without_labels().inputs(CPU)
    loss = Objective(model)(*arguments)
    assert (loss.item(), scored) == (0.0, 0)
    for gradient in torch.autograd.grad(loss, list(model.parameters())):
        assert not gradient.any()
