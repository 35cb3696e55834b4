"""Directories of models of transformers: which library reads them, and which directories are rejected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_tokenizer import read_as_it_is, word_tokenizer

import uwaga
from uwaga._base.errors import CheckpointError
from uwaga.inspect.run_text import run_text
from uwaga.models import Transformer

TEXT = "the cat sat on the mat ."


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def make(family: str = "gpt_neox", maker: Any = transformers.AutoModelForCausalLM, **config: object) -> Path:
        folder = tmp_path / family
        tiny_models.make(family, tiny_models.small(family), maker).save_pretrained(folder)
        word_tokenizer(family=family).save(str(folder / "tokenizer.json"))
        read_as_it_is(folder)
        change(folder, **config)
        return folder

    return make


def change(folder: Path, **config: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def test_a_family_of_transformers_alone_is_read_by_transformers(write: Callable[..., Path]) -> None:
    reader = uwaga.models.open(write(), dtype="float32")
    assert type(reader.model).__name__ == "GPTNeoXForCausalLM"
    assert (reader.title, reader.model.training) == ("gpt_neox", False)
    assert run_text(reader, TEXT).recording.maps["decoder", 1].shape == (1, 4, 7, 7)
    assert run_text(reader, TEXT).recording.model == "gpt_neox"


def test_a_family_of_this_package_is_read_by_it(write: Callable[..., Path]) -> None:
    assert isinstance(uwaga.models.open(write("llama"), dtype="float32"), Transformer)


def test_what_this_package_has_no_option_for_is_read_by_transformers(write: Callable[..., Path]) -> None:
    folder = write("llama", mlp_bias=False, hidden_act="relu2")
    assert (
        type(uwaga.models.open(str(folder), dtype="float32").model).__module__
        == "transformers.models.llama.modeling_llama"
    )


def test_a_module_keeps_its_attributes(write: Callable[..., Path]) -> None:
    module = uwaga.models.load(write("llama"))
    opened = uwaga.models.open(module, tokenizer=word_tokenizer())
    assert (module.tokenizer, module.title) == (None, "")
    assert opened.decoder is module.decoder
    assert opened.tokenizer is not None


def test_bfloat16(write: Callable[..., Path]) -> None:
    reader = uwaga.models.open(write(), dtype="bfloat16")
    assert run_text(reader, TEXT).states.dtype is torch.bfloat16


def test_a_weight_of_another_shape_is_rejected(write: Callable[..., Path]) -> None:
    file, name = write() / "model.safetensors", "gpt_neox.layers.0.attention.dense.weight"
    save_file(load_file(file) | {name: torch.zeros(3, 32)}, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"{name} has another shape in the files"):
        uwaga.models.open(str(file.parent), dtype="float32")


def test_code_of_a_directory_is_not_run(write: Callable[..., Path], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    folder = write(auto_map=names, model_type="own", architectures=["Model"])
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    with pytest.raises(CheckpointError, match="cannot be read by transformers"):
        uwaga.models.open(str(folder), dtype="float32")
    assert not ran.exists()
