"""Former names of arguments of the layers are refused, and the message says the present one."""

import pytest

import uwaga.nn

RENAMED = {
    "LayerSpec": {
        "width": "d_model",
        "hidden": "d_ff",
        "heads": "num_heads",
        "key_heads": "num_kv_heads",
        "key_width": "d_k",
        "value_width": "d_v",
        "memory_width": "memory_dim",
        "eps": "norm_eps",
        "hidden_dropout": "activation_dropout",
        "norm_kind": "norm_type",
    },
    "FeedForward": {"width": "d_model", "hidden": "d_ff"},
    "MultiHeadAttention": {
        "width": "d_model",
        "heads": "num_heads",
        "key_heads": "num_kv_heads",
        "key_width": "d_k",
        "value_width": "d_v",
        "query_input": "query_dim",
        "key_input": "key_dim",
        "value_input": "value_dim",
        "output_width": "output_dim",
    },
    "Encoder": {"layers": "num_layers"},
    "Decoder": {"layers": "num_layers"},
    "KeyValueCache": {"layers": "num_layers"},
    "SinusoidalPositions": {"width": "d_model"},
    "LearnedPositions": {"width": "d_model"},
    "RotaryPositions": {"width": "rotary_dim"},
    "AlibiPositions": {"heads": "num_heads"},
    "RelativePositions": {"heads": "num_heads", "buckets": "num_buckets"},
}


@pytest.mark.parametrize(
    ("layer", "old", "new"), [(layer, *pair) for layer, names in RENAMED.items() for pair in names.items()]
)
def test_a_former_name_is_refused_with_the_present_one(layer: str, old: str, new: str) -> None:
    with pytest.raises(TypeError) as raised:
        getattr(uwaga.nn, layer)(**{old: 8})
    assert str(raised.value) == f"{layer}: {old} is now called {new}"


def test_forward_of_a_feed_forward_layer_refuses_a_former_name() -> None:
    with pytest.raises(TypeError) as raised:
        uwaga.nn.FeedForward(8, 16).forward(None, steadily=False)
    assert str(raised.value) == "forward: steadily is now called batch_invariant"


@pytest.mark.parametrize(("old", "new"), RENAMED["LayerSpec"].items())
def test_a_specification_has_no_former_attribute(old: str, new: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(uwaga.nn.LayerSpec(d_model=8, num_heads=2, d_ff=16), old)
    assert str(raised.value) == f"'LayerSpec' object has no attribute '{old}'; it is now called {new}"
