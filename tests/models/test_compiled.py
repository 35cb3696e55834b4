"""A whole model compiles into one graph, and gives the same logits."""

import pytest
import torch

from uwaga.models import GPT2Config, GPT2Model


@pytest.mark.slow
def test_a_whole_model_compiles_into_one_graph() -> None:
    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 32, "max_position_embeddings": 16}
    model = GPT2Model(GPT2Config(vocab_size=20, **sizes)).eval()
    ids = torch.randint(0, 20, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(ids).logits
        result = torch.compile(model, fullgraph=True, backend="aot_eager")(ids).logits
    torch.testing.assert_close(result, expected)
