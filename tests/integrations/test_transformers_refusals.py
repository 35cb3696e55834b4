"""What attn_implementation="uwaga" does not serve, and what registering it changes; tests/messages/integrations.txt has the messages."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402
from uwaga.integrations.transformers import register  # noqa: E402

register_with_transformers()

BY_THEMSELVES = ["mpnet", "deberta", "deberta-v2", "bloom", "falcon", "codegen", "gptj", "mpt"]


def serves(model: nn.Module) -> None:
    """The model's attention is computed here, as exactly as eager attention."""
    ids = tiny.tokens(2, 7)

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(ids)[0]

    tiny.agrees(model, run)


@pytest.mark.parametrize("family", BY_THEMSELVES)
def test_families_that_compute_attention_by_themselves(family: str) -> None:
    rotary = {"rotary_dim": 4} if family in ("codegen", "gptj") else {}
    config = transformers.AutoConfig.for_model(family, **tiny.small(family) | {"vocab_size": 64} | rotary)
    model = transformers.AutoModel.from_config(config)
    if tiny.offers_a_choice(model):  # CodeGen and GPT-J since transformers 5.24
        serves(model)
        return
    with pytest.raises(ValueError, match="computes attention by itself"):
        transformers.AutoModel.from_config(config, attn_implementation="uwaga")
    model.set_attn_implementation("eager")


def test_to_register_twice_does_nothing_more() -> None:
    before = transformers.PreTrainedModel.get_correct_attn_implementation
    register_with_transformers()
    assert transformers.PreTrainedModel.get_correct_attn_implementation is before


def test_attentions_of_a_whole_model_are_asked_for_call_by_call() -> None:
    """In the config, transformers allows them for eager attention alone."""
    model = tiny.make("bert", tiny.ENCODERS["bert"], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    with pytest.raises(ValueError, match="output_attentions"):
        model.config.output_attentions = True


def test_a_transformers_without_the_place_where_documents_are_found_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="documents that position_ids"):
        register.find_documents(SimpleNamespace())
