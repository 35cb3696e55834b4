"""What attn_implementation="uwaga" does not serve says so, by its full text."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402
from transformers import masking_utils  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402
from uwaga.integrations.transformers import register  # noqa: E402
from uwaga.integrations.transformers.attention import uwaga_attention  # noqa: E402
from uwaga.integrations.transformers.mask_plan import lazy_mask  # noqa: E402

register_with_transformers()

_WIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
BY_THEMSELVES = ["mpnet", "deberta", "deberta-v2", "bloom", "falcon", "codegen", "gptj", "mpt"]


def ignores(model: nn.Module) -> str:
    return (
        f"attn_implementation='uwaga': {type(model).__name__} computes attention by itself and would ignore it; "
        "load it with attn_implementation='eager'"
    )


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
    if model._can_set_attn_implementation():  # CodeGen and GPT-J since transformers 5.24
        serves(model)
        return
    with pytest.raises(ValueError) as raised:
        transformers.AutoModel.from_config(config, attn_implementation="uwaga")
    assert str(raised.value) == ignores(model)
    for changed in ("uwaga", {"": "uwaga"}):
        with pytest.raises(ValueError) as raised:
            model.set_attn_implementation(changed)
        assert str(raised.value) == ignores(model)
    model.set_attn_implementation("eager")


def test_other_names_are_left_to_transformers() -> None:
    config = transformers.AutoConfig.for_model("mpnet", vocab_size=64, **_WIDE)
    assert transformers.AutoModel.from_config(config, attn_implementation="eager") is not None


def x(batch: int, tokens: int = 4) -> Tensor:
    return torch.zeros(batch, 2, tokens, 8)


@pytest.mark.parametrize("name", ["indices", "block_indices", "sinks", "block_table", "cache"])
def test_arguments_of_other_kinds_of_attention(name: str) -> None:
    with pytest.raises(ValueError) as raised:
        uwaga_attention(nn.Linear(1, 1), x(1), x(1), x(1), None, **{name: torch.zeros(1)})
    assert str(raised.value) == (
        f"attn_implementation='uwaga': Linear passes '{name}', which is not supported; "
        "load the model with attn_implementation='eager'"
    )


def test_offsets_of_more_than_one_row() -> None:
    with pytest.raises(ValueError) as raised:
        uwaga_attention(nn.Identity(), x(2), x(2), x(2), None, cu_seq_lens_q=torch.tensor([0, 4]))
    assert str(raised.value) == "attn_implementation='uwaga': cu_seq_lens_q needs one packed row, not a batch of 2"


def test_maps_of_packed_queries_that_go_on() -> None:
    offsets = {"cu_seq_lens_q": torch.tensor([0, 1, 2]), "cu_seq_lens_k": torch.tensor([0, 3, 4])}
    query, key = x(1, 2), x(1, 4)
    with pytest.raises(ValueError) as raised:
        uwaga_attention(nn.Identity(), query, key, key, None, is_causal=True, output_attentions=True, **offsets)
    assert str(raised.value) == (
        "attn_implementation='uwaga': Identity attends causally or in a window over a packed batch whose cu_seq_lens_q and "
        "cu_seq_lens_k differ; neither a map nor a position bias is supported there"
    )


def test_windows_in_which_a_token_sees_nothing() -> None:
    """Masks of them are made and thrown away by models that have no layer with a window; attention says what is wrong."""
    said = "attn_implementation='uwaga': sliding_window=0 hides every key from its query; set it to 1 or more, or to None for no window"
    window = masking_utils.sliding_window_causal_mask_function(0)
    mask = lazy_mask(batch_size=1, q_length=4, kv_length=4, mask_function=window)
    assert repr(mask) == f"LazyMask(shape=(1, 1, 4, 4), InvalidPlan(reason={said!r}))"
    offsets = {"cu_seq_lens_q": torch.tensor([0, 4])}
    for compute in (
        lambda: uwaga_attention(nn.Identity(), x(1), x(1), x(1), mask),
        lambda: uwaga_attention(nn.Identity(), x(1), x(1), x(1), None, sliding_window=0, **offsets),
        lambda: mask[0],
    ):
        with pytest.raises(ValueError) as raised:
            compute()
        assert str(raised.value) == said


@pytest.mark.parametrize(
    ("operation", "compute"),
    [("add", lambda m: m + torch.zeros(1)), ("rsub", lambda m: 1.0 - m), ("mul", lambda m: m * 2)],
)
def test_models_that_compute_with_their_mask(operation: str, compute: Callable[[Tensor], Tensor]) -> None:
    mask = lazy_mask(batch_size=1, q_length=4, kv_length=4)
    with pytest.raises(ValueError) as raised:
        compute(mask)
    assert str(raised.value) == (
        f"attn_implementation='uwaga': this model computes with its attention mask itself (aten::{operation}), and does not "
        "pass it to uwaga; load it with attn_implementation='eager'"
    )


@pytest.mark.slow
def test_without_transformers() -> None:
    code = """
import sys
sys.modules["transformers"] = None
from uwaga.integrations import register_with_transformers
try:
    register_with_transformers()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "register_with_transformers: needs the package 'transformers', version 5 or newer\n"


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
    with pytest.warns(UserWarning, match="documents that position_ids alone separate see each other") as result:
        register._find_documents(SimpleNamespace())
    assert len(result) == 1
