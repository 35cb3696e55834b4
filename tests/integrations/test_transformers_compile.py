"""Models with attn_implementation="uwaga" compile whole, and give what they give without the compiler."""

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
register_with_transformers()


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
