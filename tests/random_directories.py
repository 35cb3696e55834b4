"""Random small directories of sentence-transformers, and random settings in their files.

A directory is one of the bases: an encoder of vectors ("dense"), a classifier of pairs ("classifier"), or a cross-encoder that pools ("pooled"), each of
a random family. Its settings are changed by one to three of CHANGES. `outcome` compares uwaga with sentence-transformers: the directory is computed
alike, refused by name, or read differently, which must never happen.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_models import save_model, save_modules
from tiny_models import draw
from tiny_tokenizer import PAIR, WORDS, write_tokenizer

from uwaga import Reranker, TextEncoder
from uwaga._base.errors import CheckpointError
from uwaga.models.checkpoints import sentence_files

TEXTS = [
    "the cat sat on the mat .",
    "A Dog ran",
    "then it ran away from the house , unbelievable and a dog sat on it too",
]
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2]), (TEXTS[2], "it ran . " * 5)]
_WIDE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
_GROUPED = _WIDE | {"num_key_value_heads": 1, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": _WIDE,
    "roberta": _WIDE | {"type_vocab_size": 1, "max_position_embeddings": 34},
    "albert": _WIDE | {"embedding_size": 16},
    "electra": _WIDE | {"embedding_size": 16},
    "distilbert": {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2},
    "mpnet": _WIDE | {"max_position_embeddings": 34, "pad_token_id": 1},
    "modernbert": _WIDE | {"local_attention": 6, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    "nomic_bert": _WIDE,
    "qwen3": _GROUPED,
    "deberta-v2": _WIDE | {"type_vocab_size": 2},
}
_TYPED = ("bert", "albert", "electra", "nomic_bert", "deberta-v2")
_WITHOUT_PAIRS = ("nomic_bert",)


class Change(NamedTuple):
    """A change of settings. A refusal must contain one of `named`."""

    named: tuple[str, ...]
    make: Callable[[Path], None]


# The values that a key of a table may get, by the key in the file: right ones, defaults, and wrong ones.
_OUTPUTS = ["last_hidden_state", "pooler_output", "logits", "hidden_states", ["hidden_states", 0], None]


VALUES: dict[str, dict[str, list[Any]]] = {
    "modules.json": {"kwargs": [[], ["task"]], "idx": [7], "name": ["0", "x"], "type": ["custom.Transformer", "sentence_transformers.models.Pooling"],
                     "path": ["", "elsewhere"], "klass": ["x"]},
    "config_sentence_transformers.json": {
        "activation_fn": ["torch.nn.Identity", "torch.nn.modules.activation.Sigmoid", "torch.nn.Tanh", "my.Identity", None],
        "prompts": [{"query": "the cat : ", "x": "on a mat "}, {"query": "a dog "}], "default_prompt_name": ["query", "x", None],
        "model_type": ["CrossEncoder", "SentenceTransformer", "SparseEncoder", "x", None], "similarity_fn_name": ["dot", "cosine", None],
        "truncate_dim": [7, None, 500], "__version__": [{"sentence_transformers": "6.1.0"}], "requirements": [None], "max_active_dims": [3],
        "keep_in_fp32_modules": [[], None, ["2.linear"]], "query_length": [5], "document_length": [5], "do_query_expansion": [True],
        "attend_to_expansion_tokens": [True], "attend_to_mask_tokens": [True], "query_prefix": ["[Q]"], "document_prefix": ["[D]"], "skiplist_words": [["the"]],
        "query_expansion": [None], "truncate_dims": [3], "default_prompt": ["query"],
    },
    "sentence_bert_config.json": {
        "do_lower_case": [True, False, 1], "max_seq_length": [5, 8, 20, None, 30], "module_output_name": ["token_embeddings", "sentence_embedding", "scores"],
        "transformer_task": ["feature-extraction", "sequence-classification", "text-generation", "fill-mask", "any-to-any", "retrieval"],
        "query_length": [6, None], "document_length": [6, None], "query_expansion": [None, {"strategy": "fixed", "length": 9}],
        "backend": ["torch"], "cache_dir": [None], "unpad_inputs": [True, False, None], "tokenizer_name_or_path": [None, "x/y"],
        "modality_config.text.method": ["forward", "get_text_features"], "modality_config.text.method_output_name": _OUTPUTS,
        "modality_config.text.format": ["flat"], "modality_config": [{}],
        "modality_config.message.method": ["forward"], "modality_config.message.method_output_name": ["last_hidden_state"],
        "modality_config.message.format": ["flat"],
        **{f"modality_config.{name}": [{"method": "forward", "method_output_name": "last_hidden_state"}] for name in ("audio", "image", "video")},
        **{f"processing_kwargs.{name}": [{"padding": True}] for name in ("audio", "image", "video")},
        "processing_kwargs.chat_template": [{"add_generation_prompt": True}, {}], "processing_kwargs.tokenizer": [{"max_length": 3}],
        "processing_kwargs": [None, {}, {"text": {"max_length": 6}}],
        **{f"{name}_{end}": [None, {}, {"model_max_length": 6}] for name in ("config", "model") for end in ("args", "kwargs")},
        **{name: [None, {}, {"truncation_side": "left"}] for name in ("processor_kwargs", "tokenizer_args")},
        "max_length": [5], "do_lowercase": [True],
    },
    "Pooling": {
        "pooling_mode": ["cls", "mean", "lasttoken", ["max", "cls"], "median"], "include_prompt": [False, True, 0],
        **{f"pooling_mode_{name}": [True, False] for name in ("cls_token", "lasttoken", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens",
                                                             "weightedmean_tokens")},
        "embedding_dimension": [8], "word_embedding_dimension": [16], "pooling": ["cls"],
    },
    "Dense": {
        "activation_function": ["torch.nn.modules.linear.Identity", "torch.nn.ReLU", "torch.nn.SiLU", "my.Identity"], "bias": [True, False],
        "in_features": [16, 8], "out_features": [16, 9], "module_input_name": ["sentence_embedding", "token_embeddings"],
        "module_output_name": ["sentence_embedding", "scores", None], "use_residual": [True, False], "init_bias": [None], "init_weight": [None],
        "activation": ["relu"],
    },
    "LayerNorm": {"dimension": [16, 8], "eps": [0.1]},
    "Normalize": {"module_input_name": ["sentence_embedding", "token_embeddings", "x"], "module_output_name": [None, "sentence_embedding", "x"],
                  "p": [1]},
    "Dropout": {"dropout": [0.5, 1.0], "p": [0.5]},
    "tokenizer_config.json": {
        "model_max_length": [5, 9, 1e30, 200], "max_len": [6], "truncation_side": ["left", "right"], "padding_side": ["left", "right"],
        "model_input_names": [["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]],
        "tokenizer_class": ["BertTokenizer", "PreTrainedTokenizerFast"],
    },
    "config.json": {
        "sentence_transformers": [{"activation_fn": "torch.nn.Identity"}, {"activation_fn": None}, {"version": "5.0.0"}],
        "sbert_ce_default_activation_function": ["torch.nn.modules.linear.Identity", None],
        "tokenizer_class": ["BertTokenizer", "PreTrainedTokenizerFast"],
    },
    "tokenizer.json": {"truncation.direction": ["Left", "Right"]},
    "processor_config.json": {"processor_class": ["Gemma3Processor"]},
}  # fmt: skip


def _edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(change(content)))


def _put(content: dict[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    inner = content.get(keys[0])
    return content | {
        keys[0]: value if len(keys) == 1 else _put(inner if isinstance(inner, dict) else {}, keys[1:], value)
    }


def set_key(rng: random.Random, folder: Path) -> Change:
    """A key of a table gets one of its values, in a file that is there or is made."""
    modules = json.loads((folder / "modules.json").read_text()) if (folder / "modules.json").exists() else []
    places = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    kinds = [kind for kind in VALUES if kind.endswith(".json") or kind in places]
    kind = rng.choices(kinds, [6 if kind == "sentence_bert_config.json" else 1 for kind in kinds])[0]
    key = rng.choice(sorted(VALUES[kind]))
    value = rng.choice(VALUES[kind][key])
    file = kind if kind.endswith(".json") else f"{places[kind]}/config.json"
    if kind == "modules.json":
        at = rng.randrange(max(len(modules), 1))

        def change(content: Any) -> Any:
            return [module | {key: value} if index == at else module for index, module in enumerate(content)]
    else:

        def change(content: Any) -> Any:
            return _put(content, key.split("."), value)

    if kind == "modules.json" and not modules:
        return Change((), lambda _: None)
    # Where the message is about what the key leads to, it names that.
    more = {"modality_config.message.method": ("modality_config.message",), "modality_config.message.format": ("modality_config.message",),
            "modality_config.message.method_output_name": ("modality_config.message",), "prompts": ("default_prompt_name",), "path": ("elsewhere", "config.json"), "type": ("Transformer", "Pooling", "modules.json"),
            "model_type": ("Encoder",), "out_features": ("scores to a pair", "vectors before it", "linear.weight"), "bias": ("linear.bias",),
            "use_residual": ("residual",), "truncation_side": ("include_prompt",), "include_prompt": ("include_prompt", "truncation_side"),
            "truncation.direction": ("truncation_side",)}  # fmt: skip
    return Change(
        (key, key.rpartition(".")[0] or key, *more.get(key.rpartition(".")[2], ()), *more.get(key, ())),
        lambda root: _edit(root / file, change),
    )


def rename_transformer_file(rng: random.Random, folder: Path) -> Change:
    names = rng.sample(sentence_files.TRANSFORMER_FILES[1:], 2)

    def make(root: Path) -> None:
        path = root / sentence_files.TRANSFORMER_FILES[0]
        if path.exists() and (root / "modules.json").exists():
            _edit(path, lambda content: _put(content, ["max_seq_length"], 6))
            path.rename(root / names[0])
            (root / names[1]).write_text("{}")

    return Change((), make)


def move_modules(rng: random.Random, folder: Path) -> Change:
    """The transformer and the other modules get folders of other names."""
    move_root = rng.random() < 0.5

    def make(root: Path) -> None:
        if not (root / "modules.json").exists():
            return
        modules = json.loads((root / "modules.json").read_text())
        kept = {"modules.json", "config_sentence_transformers.json"}
        for number, module in enumerate(modules):
            old, new = module["path"], f"part {number}/deep" if number else "encoder"
            if not number and move_root and not old:
                (root / new).mkdir()
                for path in [path for path in root.iterdir() if path.is_file() and path.name not in kept]:
                    path.rename(root / new / path.name)
            elif number and (root / old).is_dir() and old:
                (root / new).parent.mkdir(exist_ok=True)
                (root / old).rename(root / new)
            else:
                continue
            module["path"] = new
        (root / "modules.json").write_text(json.dumps(modules))

    return Change((), make)


def order_modules(rng: random.Random, folder: Path) -> Change:
    seed = rng.random()

    def change(modules: list[Any]) -> list[Any]:
        generator = random.Random(seed)
        modules = [*modules]
        at, other = generator.randrange(len(modules)), generator.randrange(len(modules))
        if generator.random() < 0.3:
            return modules[:at] + modules[at + 1 :]
        modules[at], modules[other] = modules[other], modules[at]
        return modules

    def make(root: Path) -> None:
        if (root / "modules.json").exists():
            _edit(root / "modules.json", change)

    return Change(("modules.json", "in_features", "dimension", "module_output_name"), make)


def drop_file(rng: random.Random, folder: Path) -> Change:
    name = rng.choice(["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"])

    def make(root: Path) -> None:
        (root / name).unlink(missing_ok=True)

    named = (
        "model_type",
        "config.json cannot be read",
        "no logits",
        "holds a",
        "transformer_task",
        "is no cross-encoder",
        "Pooling",
    )
    return Change(named, make)


_TEMPLATES = (
    "[CLS] {% for m in messages %}{{ m.role }} {{ m.content | trim }} [SEP]{% endfor %}",
    "[CLS] {{ messages[-1].content }} the {{ messages[0]['content'] | length }} [SEP]",
    "{% for m in messages %}{{ m.content[0].text }} the {% endfor %}[SEP]",
    "{{ cls_token }}{% if messages | length > 1 %}a{% endif %} {{ (messages | last).content | upper }}{{ sep_token }}"
    "{% if add_generation_prompt %} then it ran{% endif %}",
    "{% set ns = namespace(a='') %}{% for m in messages %}{% set ns.a = ns.a ~ ' on ' ~ m.content %}{% endfor %}{{ ns.a }} .",
    "{{ messages[0].content }}", "{{ strftime_now('%Y') }}", "{{ task }} {{ messages[0].content }}", "{{ messages | random }}",
)  # fmt: skip


def write_template(rng: random.Random, folder: Path) -> Change:
    """A chat template in one of its places, and settings that render it."""
    texts = rng.sample(_TEMPLATES, 2)
    place = rng.choice(["file", "settings", "file and settings", "folder", "file and folder"])
    message = rng.choice([None, {}, {"format": "auto"}, {"format": "flat"}, {"format": "structured"}])
    kwargs = rng.choice([None, {"add_generation_prompt": True}, {"restore_suffix": False}])

    def make(root: Path) -> None:
        modules = json.loads((root / "modules.json").read_text()) if (root / "modules.json").exists() else []
        transformer = root / modules[0]["path"] if modules else root
        if not transformer.is_dir():
            return
        if "settings" in place:
            value = texts["file" in place]
            _edit(transformer / "tokenizer_config.json", lambda content: content | {"chat_template": value})
        if "file" in place:
            (transformer / "chat_template.jinja").write_text(texts[0])
        if "folder" in place:
            (transformer / "additional_chat_templates").mkdir(exist_ok=True)
            (transformer / "additional_chat_templates" / "other.jinja").write_text(texts[1])
        if message is None or not modules or not (transformer / sentence_files.TRANSFORMER_FILES[0]).exists():
            return

        def change(content: Any) -> Any:
            output = ((content.get("modality_config") or {}).get("text") or {}).get("method_output_name")
            content = _put(
                content, ["modality_config", "message"], {"method": "forward", "method_output_name": output, **message}
            )
            return content if kwargs is None else _put(content, ["processing_kwargs", "chat_template"], kwargs)

        _edit(transformer / sentence_files.TRANSFORMER_FILES[0], change)

    return Change(("chat template", "modality_config.message"), make)


# Each makes a change for a directory; a new kind of setting is one more function here, with its weight.
CHANGES: dict[Callable[[random.Random, Path], Change], float] = {
    set_key: 12, rename_transformer_file: 1, move_modules: 1, order_modules: 1, drop_file: 1, write_template: 4,
}  # fmt: skip


@cache
def base(kind: str, family: str, parent: Path) -> Path:
    """A directory without changes, which is made once."""
    import sentence_transformers
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling

    torch.manual_seed(0)
    plain, saved = parent / f"{kind} {family} plain", parent / f"{kind} {family}"
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    sizes = {"vocab_size": 5 + len(WORDS), "max_position_embeddings": 32, "num_labels": 1}
    maker = "AutoModelForSequenceClassification" if kind == "classifier" else "AutoModel"
    save_model(plain, family, maker, **(sizes | ids | FAMILIES[family]))
    # BertTokenizer of transformers makes its own normalizer, by do_lower_case. Of mpnet, positions begin after the id of [UNK].
    named = "BertTokenizer" if family in _TYPED else "PreTrainedTokenizerFast"
    padding = {"pad_token": "[UNK]"} if family == "mpnet" else {}
    write_tokenizer(plain, pair=PAIR, model_max_length=14, tokenizer_class=named, do_lower_case=False, **padding)
    if kind == "classifier":
        sentence_transformers.CrossEncoder(str(plain), device="cpu").save_pretrained(str(saved))
    else:
        scores = Dense(16, 1, activation_function=torch.nn.Identity(), module_output_name="scores")
        tail = [
            Pooling(16, "mean"),
            Dense(16, 16),
            Dropout(0.1),
            LayerNorm(16),
            Normalize() if kind == "dense" else scores,
        ]
        for module in tail:
            draw(module)
        reader = sentence_transformers.SentenceTransformer if kind == "dense" else sentence_transformers.CrossEncoder
        save_modules(saved, Transformer(str(plain)), *tail, reader=reader)
    # Words in capitals are in no vocabulary unless they are made small first.
    text = (plain / "tokenizer.json").read_text()
    for path in (saved, plain):
        (path / "tokenizer.json").write_text(text.replace('"lowercase": true', '"lowercase": false'))
    shutil.copy(plain / "tokenizer_config.json", saved / "tokenizer_config.json")
    return saved


class Directory(NamedTuple):
    kind: str
    folder: Path
    changes: list[Change]
    words: str  # what it is, for a failure


def random_directory(seed: int, parent: Path) -> Directory:
    rng = random.Random(seed)
    kind = rng.choice(["dense", "classifier", "pooled"])
    families = [family for family in FAMILIES if kind == "dense" or family not in _WITHOUT_PAIRS]
    family = rng.choice(families)
    folder = parent / f"directory {seed}"
    shutil.copytree(base(kind, family, parent), folder)
    changes = []
    makers = rng.choices(list(CHANGES), list(CHANGES.values()), k=rng.choice([1, 1, 2, 3]))
    for maker in sorted(makers, key=lambda make: make is not set_key):  # files are moved when they are finished
        change = maker(rng, folder)
        change.make(folder)
        changes.append(change)
    return Directory(kind, folder, changes, f"seed {seed}: {kind} {family}, {[change.named for change in changes]}")


def outcome(directory: Directory) -> str:
    """ "computed": as sentence-transformers does. "refused": by a CheckpointError that names what was changed. "alone": sentence-transformers cannot
    read the directory, and there is no truth. Anything else is a failure in words."""
    ours: Any
    try:
        if directory.kind == "dense":
            encoder = TextEncoder.load(directory.folder)
            ours = [
                getattr(encoder, f"encode{name}")(TEXTS, overflow="truncate") for name in ("", "_query", "_document")
            ]
        else:
            ours = [Reranker.load(directory.folder).scores(PAIRS, overflow="truncate")]
    except CheckpointError as error:
        named = [word for change in directory.changes for word in change.named]
        if any(word in str(error) for word in named) and str(directory.folder) in str(error):
            return "refused"
        return f"a refusal without a name: {error}"
    try:
        theirs = _theirs(directory)
    except Exception:  # noqa: BLE001  # whatever it raises of a directory that it cannot read
        return "alone"
    for result, right in zip(ours, theirs, strict=True):
        scale = max(float(np.abs(right).max()), 1e-3)
        if result.shape != right.shape or not np.allclose(result / scale, right / scale, atol=2e-5):
            return f"other numbers: {result.ravel()[:4]}, not {right.ravel()[:4]}"
    return "computed"


def _theirs(directory: Directory) -> list[np.ndarray]:
    """One text after another: theirs in a batch is padded."""
    import sentence_transformers

    os.environ["HF_HUB_OFFLINE"] = "1"
    if directory.kind == "dense":
        model = sentence_transformers.SentenceTransformer(str(directory.folder), device="cpu")
        ways = [model.encode, model.encode_query, model.encode_document]
        return [np.concatenate([way([text], show_progress_bar=False) for text in TEXTS]) for way in ways]
    model = sentence_transformers.CrossEncoder(str(directory.folder), device="cpu")
    return [np.concatenate([model.predict([pair], show_progress_bar=False) for pair in PAIRS])]
