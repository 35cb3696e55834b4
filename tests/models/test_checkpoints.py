"""Directories with models: every form in which weights are stored, and everything that may be wrong with them, told at
once. The model is one of ours: what transformers writes is compared in test_families.py."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import WHERE, read_config
from torch import Tensor

from uwaga._base.errors import CheckpointError
from uwaga.models import Transformer, config, load, save
from uwaga.models.checkpoints.rope_parameters import Rope
from uwaga.models.families import family_of, model_types
from uwaga.models.families.family import File
from uwaga.nn.rotary_scaling import RotaryScaling

IDS = torch.tensor([[3, 4, 5]])


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 10}
    return Transformer(config("bert", outputs=("pooled", "logits"), **sizes)).eval()


@pytest.fixture
def folder(model: Transformer, tmp_path: Path) -> Path:
    save(model, tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """Change the weights in a folder; its file of weights comes back."""
    path = folder / "model.safetensors"
    weights = {name: weight.clone() for name, weight in load_file(path).items()}
    change(weights)
    save_file(weights, path)
    return path


def describe(folder: Path, **changes: object) -> Path:
    """Change config.json; None takes a key away. Its path comes back."""
    path = folder / "config.json"
    result = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in result.items() if value is not None}))
    return path


def message(folder: Path, **options) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder, **options)
    return str(caught.value)


def same(a: Transformer, b: Transformer) -> bool:
    there = b.state_dict()
    return all(torch.equal(weight, there[name]) for name, weight in a.state_dict().items())


# Every form.


def shard(folder: Path, write: Callable, suffix: str) -> Path:
    """The weights of a folder over two files and an index, as transformers names them."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = sorted(weights)
    halves = {
        f"{stem}-00001-of-00002.{suffix}": names[: len(names) // 2],
        f"{stem}-00002-of-00002.{suffix}": names[len(names) // 2 :],
    }
    for file, part in halves.items():
        write({name: weights[name] for name in part}, folder / file)
    index = folder / f"{stem}.{suffix}.index.json"
    listed = {name: file for file, part in halves.items() for name in part}
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": listed}))
    return index


@pytest.mark.parametrize(("write", "suffix"), [(save_file, "safetensors"), (torch.save, "bin")])
def test_shards_are_one_model(model: Transformer, folder: Path, write: Callable, suffix: str) -> None:
    shard(folder, write, suffix)
    assert same(model, load(folder))


@pytest.mark.parametrize(("write", "suffix"), [(save_file, "safetensors"), (torch.save, "bin")])
def test_one_file_beside_an_index_of_others_is_refused(
    model: Transformer, folder: Path, write: Callable, suffix: str
) -> None:
    """Whichever is meant: transformers loads the one file, and a download or a copy may have left either."""
    weights = load_file(folder / "model.safetensors")
    index = shard(folder, write, suffix)
    single = index.name.removesuffix(".index.json")
    write(weights, folder / single)
    assert message(folder) == (
        f"{folder} has both {single} and {index.name}, which lists other files: "
        "they may be of two models; remove the one that is not meant"
    )
    listed = json.loads(index.read_text())
    index.write_text(json.dumps(listed | {"weight_map": dict.fromkeys(listed["weight_map"], single)}))
    assert same(model, load(folder))
    listed["weight_map"].popitem()
    index.write_text(json.dumps(listed | {"weight_map": dict.fromkeys(listed["weight_map"], single)}))
    assert "does not match its files" in message(folder)


def test_a_model_is_not_saved_beside_the_shards_of_another(model: Transformer, folder: Path) -> None:
    shard(folder, save_file, "safetensors")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError) as caught:
        save(model, folder)
    assert str(caught.value) == (
        f"{folder} has model.safetensors.index.json of a model in several files; remove it and these files, or give another "
        "directory"
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_file_of_torch_save_is_read(model: Transformer, folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert same(model, load(folder))


def test_a_file_from_before_pytorch_1_6_is_refused_by_name(folder: Path) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path, _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert str(caught.value) == (
        f"{path} cannot be read as weights: it is not a zip archive, and files from before PyTorch 1.6 are not read; load it with "
        "torch.load(weights_only=True), and save it again with safetensors"
    )


def test_safetensors_go_before_pickles(model: Transformer, folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"something else")
    assert same(model, load(folder))


def test_a_sentence_transformers_directory_gives_its_transformer(model: Transformer, folder: Path) -> None:
    inner = folder / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).rename(inner / name)
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert same(model, load(folder))


def test_names_of_old_files_are_understood(model: Transformer, folder: Path) -> None:
    def age(weights: dict[str, Tensor]) -> None:
        for name in list(weights):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            weights[old] = weights.pop(name)
        weights["bert.embeddings.position_ids"] = torch.arange(10)[None]
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()

    rewrite(folder, age)
    assert same(model, load(folder))


def test_a_head_that_is_not_computed_is_not_read(model: Transformer, folder: Path) -> None:
    more = {"cls.seq_relationship.weight": torch.ones(2, 8), "cls.seq_relationship.bias": torch.ones(2)}
    rewrite(folder, lambda weights: weights.update(more))
    assert same(model, load(folder))
    assert load(folder).config.outputs == ("pooled", "logits")


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_weights_keep_their_dtype(model: Transformer, folder: Path, stored: torch.dtype) -> None:
    save(model.to(stored), folder)
    again = load(folder)
    assert {parameter.dtype for parameter in again.parameters()} == {stored}
    assert same(model, again)
    assert {parameter.dtype for parameter in load(folder, dtype=torch.float32).parameters()} == {torch.float32}
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(stored).removeprefix("torch.")


def test_a_loaded_model_evaluates_and_learns(folder: Path) -> None:
    loaded = load(folder)
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    loaded(IDS).logits.sum().backward()


@pytest.mark.parametrize("name", ["normal_", "uniform_"])
def test_weights_that_are_read_are_not_drawn_before(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On the meta device PyTorch would import its compiler for that, which takes longer than reading a model."""
    monkeypatch.setattr(torch.Tensor, name, lambda *_, **__: pytest.fail(f"{name} was called"))
    assert all(not each.is_meta for each in load(folder).parameters())


def test_saving_over_what_was_loaded_leaves_the_model_alone(model: Transformer, folder: Path) -> None:
    loaded = load(folder)
    other = Transformer(model.config).eval()
    save(other, folder)
    assert same(loaded, model)
    assert same(load(folder), other)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_save_that_fails_leaves_what_was_there(
    model: Transformer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_, **__) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        save(Transformer(model.config), folder)
    assert same(load(folder), model)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_model_that_transformers_has_no_name_for_is_not_saved(tmp_path: Path) -> None:
    model = Transformer(
        config("bert", vocab_size=20, d_model=8, num_layers=1, num_heads=2, d_ff=16, outputs=("logits", "tokens"))
    )
    with pytest.raises(CheckpointError) as caught:
        save(model, tmp_path / "new")
    assert str(caught.value) == "transformers has no BertModel with the outputs logits, tokens"
    assert not (tmp_path / "new").exists()


def test_keys_that_are_not_understood_come_back_as_they_were(folder: Path, tmp_path: Path) -> None:
    describe(folder, transformers_version="4.8.2", problem_type="regression")
    save(load(folder), tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["transformers_version"] == "4.8.2"
    assert written["problem_type"] == "regression"


# Everything that may be wrong with weights, in one message.


def test_all_differences_are_told_at_once(folder: Path) -> None:
    def spoil(weights: dict[str, Tensor]) -> None:
        del weights["bert.pooler.dense.bias"], weights["bert.encoder.layer.1.output.dense.weight"]
        weights["cls.predictions.bias"] = torch.zeros(21)
        weights["bert.embeddings.LayerNorm.bias"] = torch.zeros(8, dtype=torch.int64)
        weights["bert.encoder.layer.2.output.dense.bias"] = torch.zeros(8)
        weights["\x1b[2Jclear"] = torch.zeros(1)
        weights["embeddings.word_embeddings.weight"] = torch.zeros(20, 8)
        weights["cls.predictions.decoder.weight"] = torch.zeros(3, 8)

    path = rewrite(folder, spoil)
    assert message(folder) == "\n".join(
        [
            f"{path} does not match the model of config.json",
            "  duplicate    embeddings.word_embeddings.weight (20, 8) is also bert.embeddings.word_embeddings.weight",
            "  missing      bert.encoder.layer.1.output.dense.weight (8, 16)",
            "  missing      bert.pooler.dense.bias (8,)",
            "  unexpected   '\\x1b[2Jclear' (1,)",
            "  unexpected   bert.encoder.layer.2.output.dense.bias (8,)",
            "  wrong shape  cls.predictions.bias (21,) must be (20,)",
            "  wrong shape  cls.predictions.decoder.weight (3, 8) must be (20, 8)",
            "  wrong dtype  bert.embeddings.LayerNorm.bias (8,) is I64, not a floating dtype of weights",
        ]
    )


def test_the_shard_is_named(folder: Path) -> None:
    rewrite(folder, lambda weights: weights.update(extra=torch.zeros(2)))
    index = shard(folder, save_file, "safetensors")
    assert message(folder) == "\n".join(
        [
            f"{index} does not match the model of config.json",
            "  unexpected  extra (2,) in model-00002-of-00002.safetensors",
        ]
    )


def test_weights_that_are_no_numbers_are_told_and_may_be_let_pass(model: Transformer, folder: Path) -> None:
    def spoil(weights: dict[str, Tensor]) -> None:
        weights["bert.pooler.dense.weight"][3, 4] = float("nan")
        weights["cls.predictions.bias"][0] = float("-inf")

    path = rewrite(folder, spoil)
    assert message(folder) == "\n".join(
        [
            f"{path} does not match the model of config.json",
            "  not finite  bert.pooler.dense.weight (8, 8) in float32",
            "  not finite  cls.predictions.bias (20,) in float32",
        ]
    )
    assert load(folder, allow_nonfinite=True).pooler.dense.weight.isnan().sum() == 1


def test_a_weight_that_the_asked_dtype_cannot_hold_is_told(folder: Path) -> None:
    path = rewrite(folder, lambda weights: weights["bert.pooler.dense.bias"].fill_(1e6))
    assert load(folder).pooler.dense.bias[0] == 1e6
    assert message(folder, dtype=torch.float16) == (
        f"{path} does not match the model of config.json\n  not finite  bert.pooler.dense.bias (8,) in float16"
    )


def test_tied_weights_must_agree(folder: Path) -> None:
    def untie(weights: dict[str, Tensor]) -> None:
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"] + 1
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()

    path = rewrite(folder, untie)
    assert message(folder) == (
        f"{path} does not match the model of config.json\n"
        "  not tied  cls.predictions.decoder.weight (20, 8) differs from bert.embeddings.word_embeddings.weight"
    )


def test_mixed_dtypes_ask_for_one(folder: Path) -> None:
    def mix(weights: dict[str, Tensor]) -> None:
        weights["bert.pooler.dense.bias"] = weights["bert.pooler.dense.bias"].half()

    path = rewrite(folder, mix)
    assert message(folder) == f"{path} mixes float16 and float32: choose one with the argument dtype"
    assert load(folder, dtype=torch.float32).pooler.dense.bias.dtype == torch.float32


def test_a_dtype_that_is_no_float_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError) as caught:
        load(folder, dtype=torch.int8)
    assert str(caught.value) == "load: dtype must be a floating dtype, such as torch.bfloat16, not torch.int8"


# Directories and hub ids.


def test_a_directory_without_weights_is_told(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert message(folder) == (
        f"{folder} has no weights: there is no model.safetensors, model.safetensors.index.json, pytorch_model.bin or "
        "pytorch_model.bin.index.json"
    )


def test_a_directory_without_a_config_is_told(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert message(folder) == f"{folder / 'config.json'} cannot be read: No such file or directory"


def test_a_file_is_no_model(folder: Path) -> None:
    path = folder / "model.safetensors"
    assert message(path) == f"{path} is a file, not a directory with config.json"


def test_a_directory_has_no_revision(folder: Path) -> None:
    with pytest.raises(ValueError) as caught:
        load(folder, revision="main")
    assert str(caught.value) == f"load: {folder} is a directory, which has no revision 'main'"


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """A hub that has one repository, in place of the real one, which tests cannot reach; the calls that it got."""
    from fnmatch import fnmatch

    calls: list[dict] = []

    def snapshot_download(hub_id: str, **options) -> str:
        calls.append({"id": hub_id, **options})
        there = tmp_path / "cache"
        there.mkdir(exist_ok=True)
        for path in filter(Path.is_file, folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if any(fnmatch(name, pattern) for pattern in options["allow_patterns"]):
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, there / name)
        return str(there)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def test_what_is_no_directory_is_looked_for_on_the_hub(model: Transformer, hub: list[dict]) -> None:
    assert same(model, load("somebody/something", revision="abc"))
    assert [(call["id"], call["revision"]) for call in hub] == [("somebody/something", "abc")]


def test_pickles_are_fetched_only_where_there_is_nothing_better(
    model: Transformer, folder: Path, hub: list[dict]
) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    load("somebody/something")
    assert len(hub) == 1
    (folder / "model.safetensors").unlink()
    shutil.rmtree(folder.parent / "cache")
    assert same(model, load("somebody/something"))
    assert ["pytorch_model*.bin" in call["allow_patterns"] for call in hub] == [False, False, True]


def test_files_of_modules_are_fetched_whatever_their_folders_are_called(
    model: Transformer, folder: Path, hub: list[dict]
) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("head/model.safetensors", "deep/2_Dense/pytorch_model.bin", "checkpoint-500/model.safetensors"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"weights")
    listed = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in (("Transformer", ""), ("Dense", "head"), ("Dense", "deep/2_Dense"))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    assert same(model, load("somebody/something"))
    cache = folder.parent / "cache"
    assert {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()} >= {
        "chat_template.jinja",
        "head/model.safetensors",
        "deep/2_Dense/pytorch_model.bin",
    }
    assert not (cache / "checkpoint-500").exists()


def test_a_path_that_does_not_exist_and_is_no_hub_id_is_told() -> None:
    said = message(Path("no/such/folder"))
    assert said.startswith(
        "no/such/folder is neither a directory nor the id of a repository on the hub, such as owner/name"
    )


def test_a_hub_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_, **__) -> str:
        raise LocalEntryNotFoundError("there is no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    assert message(Path("somebody/something")) == (
        "somebody/something is not a directory, and cannot be downloaded from the hub: there is no network"
    )


# config.json: what is refused (model type, keys, text); of all model types together: test_families.py.

_SIZE = "must be a whole number from 1 to 268,435,456, not"
_ROPE = "rope_parameters"
_BERTS = "BertModel, BertForMaskedLM, BertForSequenceClassification, BertForTokenClassification, BertForPreTraining, BertForNextSentencePrediction, HF_ColBERT"
_KINDS = "must have full_attention and sliding_attention alone, each a JSON object, not"
REFUSED: list[tuple[str, dict, str]] = [
    ("bert", {"hidden_size": "8"}, f"hidden_size {_SIZE} '8'"),
    ("bert", {"num_hidden_layers": True}, "num_hidden_layers must be a whole number from 1 to 65,536, not True"),
    ("llama", {"num_hidden_layers": 2**28}, "num_hidden_layers must be a whole number from 1 to 65,536, not 268435456"),
    ("modernbert", {"num_hidden_layers": 2**28}, "num_hidden_layers must be a whole number from 1 to 65,536, not 268435456"),
    ("bert", {"vocab_size": 10**12}, f"vocab_size {_SIZE} 1000000000000"),
    ("bert", {"layer_norm_eps": [1]}, "layer_norm_eps must be a number above 0, not [1]"),
    ("bert", {"hidden_act": "tanh"}, "hidden_act must be one of 'gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu', 'silu', 'swish', not 'tanh'"),
    ("bert", {"num_attention_heads": 5}, "Config: d_model 24 is not a multiple of 5 heads"),
    ("bert", {"architectures": ["BertForQuestionAnswering"]}, f"architectures is ['BertForQuestionAnswering']; supported: {_BERTS}"),
    ("bert", {"architectures": ["BertModel", "BertForMaskedLM"]}, f"architectures is ['BertModel', 'BertForMaskedLM']; supported: {_BERTS}"),
    ("bert", {"architectures": [{}]}, f"architectures is [{{}}]; supported: {_BERTS}"),
    ("bert", {"id2label": {"0": "a", "2": "b"}}, "id2label must have the keys 0, 1, ... without a gap"),
    ("bert", {"id2label": None, "num_labels": 10**9}, "num_labels must be a whole number from 1 to 65,536, not 1000000000"),
    (
        "bert",
        {"position_embedding_type": "alibi"},
        "position_embedding_type is 'alibi': a Jina v2, whose code is in its own directory; transformers has no class for it to compare with, "
        "so that it is not read",
    ),
    (
        "xlm-roberta",
        {"position_embedding_type": "rotary"},
        "position_embedding_type is 'rotary': a Jina v3 or GTE of code in its own directory; those of transformers have the model_type "
        "jina_embeddings_v3 and gte",
    ),
    ("nomic_bert", {"num_experts": 8, "n_embd": 768}, "num_experts is 8: a mixture of experts, which is not computed"),
    *(
        (
            "mpnet",
            {name: 0},
            f"{name} must be {value} (MPNet of transformers takes {value} for it, whatever the file says: positions of another model have other "
            "rows), not 0",
        )
        for name, value in (("pad_token_id", 1), ("relative_attention_num_buckets", 32))
    ),
    ("llama", {_ROPE: {"rope_type": "longrope", "rope_theta": 1e4}}, f"rope_type of {_ROPE} must be one of 'default', 'linear', 'dynamic', 'llama3', 'yarn', not 'longrope'"),
    ("llama", {_ROPE: {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1, not 0.5"),
    ("llama", {_ROPE: {"rope_theta": "x"}}, f"{_ROPE}: rope_theta must be a number above 1, not 'x'"),
    ("llama", {_ROPE: [1]}, f"{_ROPE} must be a JSON object, not [1]"),
    ("llama", {_ROPE: {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}}, f"{_ROPE}: high_freq_factor must be a number above 0, not None"),
    ("llama", {_ROPE: {"rope_type": "linear"}}, f"{_ROPE}: factor must be a number above 0, not None"),
    ("llama", {_ROPE: {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0}}, f"{_ROPE}: RotaryScaling: beta_slow must be above 0 and at most beta_fast, not 2.0 and 1.0"),
    ("llama", {_ROPE: {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 2.0, "high_freq_factor": 1.0}}, f"{_ROPE}: RotaryScaling: low_freq_factor must be above 0 and below high_freq_factor, not 2.0 and 1.0"),
    ("llama", {_ROPE: {"rope_type": "linear", "factor": 2.0, "trick": 1}}, f"{_ROPE} of the type 'linear' cannot have trick"),
    ("llama", {_ROPE: {"full_attention": {"rope_type": "default"}}}, f"{_ROPE} of the type 'default' cannot have full_attention"),
    ("llama", {"rope_theta": None, _ROPE: {}}, f"{_ROPE}: rope_theta must be a number above 1, not None"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": None}}, "rope_scaling: truncate must be true or false, not None"),
    ("llama", {"rope_scaling": {"rope_type": "default", "factor": 4.0}}, "rope_scaling of the type 'default' cannot have factor"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling must be a JSON object, not 'linear'"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "architectures is ['LlamaForSequenceClassification']; supported: LlamaModel, LlamaForCausalLM"),
    ("llama", {"head_dim": None, "hidden_size": 25}, "hidden_size 25 is not a multiple of 4 heads"),
    ("llama", {"num_key_value_heads": 3}, "Config: num_heads 4 is not a multiple of num_kv_heads 3"),
    ("llama", {"head_dim": 5}, "Config: d_k must be even for rotary positions, not 5"),
    ("gemma3_text", {_ROPE: {"rope_type": "linear", "factor": 2.0}}, f"{_ROPE} {_KINDS} factor, rope_type"),
    ("gemma3_text", {_ROPE: {"full_attention": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}}, f"truncate of {_ROPE}.full_attention is not read by transformers: leave it out"),
    ("gemma3_text", {_ROPE: [1]}, f"{_ROPE} must be a JSON object, not [1]"),
    ("gemma3_text", {"sliding_window": None}, "layer_types has sliding_attention, and there is no sliding_window"),
    ("gemma3_text", {"sliding_window": "x"}, f"sliding_window {_SIZE} 'x'"),
    ("gemma3_text", {"architectures": ["Gemma3ForConditionalGeneration"]}, "architectures is ['Gemma3ForConditionalGeneration']; supported: Gemma3TextModel, Gemma3ForCausalLM"),
    ("modernbert", {_ROPE: {"rope_type": "linear", "factor": 2.0}}, f"{_ROPE} {_KINDS} factor, rope_type"),
    ("modernbert", {_ROPE: {"sliding_attention": None}}, f"{_ROPE}.sliding_attention must be a JSON object, not None"),
    ("modernbert", {_ROPE: {}, "rope_scaling": {"factor": 2.0}}, f"rope_scaling changes {_ROPE}.full_attention, which is absent: write it there"),
    ("modernbert", {_ROPE: None, "rope_scaling": {"type": "linear", "factor": 2.0}}, f"{_ROPE}.full_attention with rope_scaling of the type 'default' cannot have factor"),
    ("modernbert", {"sliding_window": None}, f"sliding_window {_SIZE} None"),
    ("modernbert", {"local_attention": 1}, "local_attention must be a whole number from 2 to 268,435,456, not 1"),
    ("modernbert", {"head_dim": 8}, "head_dim must be 6, hidden_size / num_attention_heads, not 8; remove it"),
    ("modernbert", {"num_attention_heads": 5}, "hidden_size 24 is not a multiple of 5 heads"),
    ("modernbert", {"architectures": ["ModernBertForTokenClassification"]}, "architectures is ['ModernBertForTokenClassification']; supported: ModernBertModel, ModernBertForMaskedLM"),
    ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}, "architectures is ['EuroBertForSequenceClassification']; supported: EuroBertModel, EuroBertForMaskedLM"),
    ("mistral", {"sliding_window": "x"}, f"sliding_window {_SIZE} 'x'"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "layer_types has sliding_attention, and there is no sliding_window"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types must be 3 of sliding_attention and full_attention, not ['full_attention']"),
    ("distilbert", {"num_hidden_layers": 1}, "num_hidden_layers is another name of n_layers, which is 3, not 1: remove one"),
    ("gpt2", {"num_attention_heads": 3}, "num_attention_heads is another name of n_head, which is 4, not 3: remove one"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "text"), REFUSED)
def test_what_is_not_computed_here_is_refused(kind: str, changes: dict, text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_config(kind, changes)
    assert str(caught.value) == f"{WHERE}: {text}"


@pytest.mark.parametrize("model_type", ["mamba", None, ["bert"]])
def test_other_model_types_are_refused(model_type: object) -> None:
    with pytest.raises(CheckpointError) as caught:
        family_of(model_type, WHERE)
    assert str(caught.value) == f"{WHERE}: model_type is {model_type!r}; supported: {', '.join(model_types())}"
    assert "bert" in model_types()


def test_what_classifiers_have_where_the_file_does_not_say() -> None:
    nothing = {"id2label": None}
    assert read_config("bert", nothing).labels == ("LABEL_0", "LABEL_1")
    assert read_config("bert", nothing | {"num_labels": 3}).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read_config("bert", {"id2label": {"1": "b", "0": "a"}}).labels == ("a", "b")
    dropouts = {"hidden_dropout_prob": 0.3, "classifier_dropout": None}
    assert read_config("bert", dropouts).classifier_dropout == 0.3


def test_own_keys_of_nomic_v1_5_mean_what_transformers_makes_of_them(transformers) -> None:
    """It reads none of them: its defaults are the sizes of v1.5. Beside its own keys, as it saves a model that it loaded, they have no effect."""
    own = {
        "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "activation_function": "swiglu", "prenorm": False,
        "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "vocab_size": 30528, "type_vocab_size": 2,
        "use_flash_attn": True, "qkv_proj_bias": False,
    }  # fmt: skip
    family = family_of("nomic_bert", WHERE)
    theirs = transformers.NomicBertConfig(**own).to_dict() | {"classifier_dropout": 0.0}  # None: as hidden_dropout_prob
    written = family.written(family.read("nomic_bert", File(own, WHERE, frozenset()), {}))
    keys = {*family.keys, "rope_parameters"} & theirs.keys()
    assert {key: written[key] for key in keys} == {key: theirs[key] for key in keys}
    assert read_config("nomic_bert", {"n_embd": 512}).d_model == 24
    with pytest.raises(CheckpointError) as caught:
        family.read("nomic_bert", File({"n_embd": 512}, WHERE, frozenset()), {})
    assert str(caught.value) == (
        f"{WHERE}: n_embd is 512, a key of the authors' own code; transformers reads none of these and has the sizes of v1.5, where it is 768"
    )


def test_every_key_of_a_published_config_is_known(minilm: Path) -> None:
    config = load(minilm).config
    assert (config.d_model, config.num_layers, config.num_heads, config.max_position_embeddings) == (384, 6, 12, 512)


_BASES, _YARN = (
    (Rope(10.0), Rope(20.0)),
    RotaryScaling(kind="yarn", factor=2.0, original_max_position_embeddings=8, truncate=False),
)
_NONE = "transformers has no {} model with these windows and rotary bases"


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        ("llama", {"windows": (3, None)}, _NONE),
        ("llama", {"ropes": _BASES}, _NONE),
        ("mistral", {"windows": (3, None)}, _NONE),
        ("gemma2", {"ropes": _BASES}, _NONE),
        ("gemma3_text", {"windows": (3, 4)}, _NONE),
        ("gemma3_text", {"windows": (3, 3), "ropes": _BASES}, _NONE),
        ("qwen2", {"windows": (3, 4)}, _NONE),
        ("modernbert", {"windows": (3, 4)}, _NONE),
        ("modernbert", {"windows": (3, 3), "ropes": _BASES}, _NONE),
        ("t5", {"gated": True, "activation": "gelu"}, "transformers has no T5 with the gated activation gelu"),
        (
            "gemma3_text",
            {"windows": (None, 4), "ropes": (Rope(10.0, _YARN), Rope(10.0))},
            "rope_parameters: transformers does not read truncate=False of a type of layers",
        ),
    ],
)
def test_what_transformers_cannot_express_is_not_saved(kind: str, settings: dict, text: str, tmp_path: Path) -> None:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "vocab_size": 60000, "num_layers": 2}
    sizes |= {} if kind in ("modernbert", "t5") else {"num_kv_heads": 2}
    with torch.device("meta"):
        model = Transformer(config(kind, **sizes, **settings))
    with pytest.raises(CheckpointError) as caught:
        save(model, tmp_path)
    assert str(caught.value) == text.format(kind)


@pytest.mark.parametrize(
    ("kind", "new", "old"),
    [
        ("modernbert", ("rope_parameters", "layer_types"), {"global_attn_every_n_layers": 2, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}),
        ("llama", ("rope_parameters",), {"rope_theta": 10000.0, "rope_scaling": None}),
    ],
)  # fmt: skip
def test_keys_of_transformers_4_mean_what_they_meant(kind: str, new: tuple[str, ...], old: dict) -> None:
    config = read_config(kind, dict.fromkeys(new) | old)
    assert replace(config, kept={}) == replace(read_config(kind, {}), kept={})
    assert not old.keys() & family_of(kind, WHERE).written(config).keys()
