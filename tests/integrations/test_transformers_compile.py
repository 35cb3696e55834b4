"""Models with attn_implementation="uwaga" compile whole, and give what they give without the compiler."""

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
register_with_transformers()


def padded(*lengths: int) -> Tensor:
    return (torch.arange(6) < torch.tensor(lengths)[:, None]).long()


@pytest.mark.parametrize("compiled", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_layers_one_by_one(family: str, compiled: tuple[int, ...]) -> None:
    """Beside layers that are not compiled, and for batches that come in turn."""
    model = tiny.make(family, (tiny.ENCODERS | tiny.DECODERS)[family], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    ids, masks = tiny.tokens(3, 6), (padded(6, 4, 1), padded(6, 6, 6), padded(2, 6, 3))

    def run() -> list[Tensor]:
        with torch.no_grad():
            made = [model(input_ids=ids, attention_mask=mask).last_hidden_state for mask in masks]
        assert {type(states) for states in made} == {Tensor}
        return [states[mask.bool()] for states, mask in zip(made, masks, strict=True)]

    plain = run()
    layers = model.layers if family == "llama" else model.encoder.layer
    torch._dynamo.reset()
    for index in compiled:
        layers[index].compile(backend="aot_eager")
    torch.testing.assert_close(run(), plain)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_one_graph(family: str) -> None:
    model = tiny.make(family, (tiny.ENCODERS | tiny.DECODERS)[family], transformers.AutoModel, num_hidden_layers=1)
    model.set_attn_implementation("uwaga")
    ids, mask = tiny.tokens(3, 6), (torch.arange(6) < torch.tensor([6, 4, 1])[:, None]).long()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        found, plain = (run(input_ids=ids, attention_mask=mask)[0][mask.bool()] for run in (compiled, model))
    torch.testing.assert_close(found, plain)
