"""Test cases of transformers' own ModelTesterMixin for small models, run by transformers_suite.py.

UWAGA_SUITE: the folder with the tests of transformers; SUITE_IMPLEMENTATION: "sdpa", or "uwaga" in place of it wherever a model is made
without a choice.
"""

import os
import sys
import unittest
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [os.environ["UWAGA_SUITE"], str(_HERE.parent)]

import tiny_models as tiny  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from tests import test_modeling_common as common  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

torch.set_num_threads(1)
if os.environ["SUITE_IMPLEMENTATION"] == "uwaga":
    from uwaga.integrations import register_with_transformers

    register_with_transformers()
    _own = transformers.PreTrainedModel.get_correct_attn_implementation

    def _get(self, requested, is_init_check=False):
        if requested is None and tiny.offers_a_choice(self) and tiny.has_sdpa(self):
            requested = "uwaga"
        return _own(self, requested, is_init_check)

    transformers.PreTrainedModel.get_correct_attn_implementation = _get


class Tester:
    """What the mixin asks of the tester of a model."""

    is_training, batch_size, num_hidden_layers, num_attention_heads = True, 3, 2, 4
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    hidden_size, vocab_size = 32, tiny.VOCABULARY

    def __init__(self, parent, family: str, options: dict) -> None:
        self.parent, self.family, self.options = parent, family, options

    def get_config(self):
        options = {name: 2 if name in tiny.LAYERS else value for name, value in self.options.items()}
        return transformers.AutoConfig.for_model(self.family, **tiny.SHARED | options)

    def prepare_config_and_inputs_for_common(self):
        ids = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size - 4) + 3
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.family in tiny.PAIRS:
            inputs["decoder_input_ids"] = common.ids_tensor([self.batch_size, self.seq_length], self.vocab_size - 4) + 3
        return self.get_config(), inputs

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


def _case(family: str, options: dict, heads: dict) -> type:
    class Case(common.ModelTesterMixin, unittest.TestCase):
        all_model_classes = tuple(
            getattr(transformers, names[family]) for names in (modeling_auto.MODEL_MAPPING_NAMES, heads)
        )
        is_encoder_decoder = family in tiny.PAIRS
        test_resize_embeddings = False

        def setUp(self) -> None:
            self.model_tester = Tester(self, family, options)

    Case.__name__ = Case.__qualname__ = f"Test_{family}"
    return Case


_DECODERS = dict.fromkeys(("qwen2", "qwen3", "phi3"), tiny.GROUPED) | tiny.DECODERS
for _families, _heads in (
    (tiny.ENCODERS, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
    (_DECODERS, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    (tiny.PAIRS, modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
):
    for _family, _options in _families.items():
        globals()[f"Test_{_family}"] = _case(_family, _options, _heads)
