"""A directory gives the tokens of AutoTokenizer, or is refused by the name of a file and a key; docs/reference/model-options.md lists all of them."""

import inspect
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from uwaga._base.errors import CheckpointError
from uwaga.models import families
from uwaga.models.tokenizers import auto_tokenizer
from uwaga.models.tokenizers.auto_tokenizer import KINDS, LISTS, REJECTED, SPECIAL, SWITCHES
from uwaga.models.tokenizers.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", minversion="5")
from random_tokenizers import FAMILIES, TEXTS, write  # noqa: E402
from transformers.models.auto import tokenization_auto  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model-options.md"


def compared(folder: Path) -> str:
    """What came of a directory: "computed", "refused", or "refused by transformers too". AssertionError where tokens differ."""
    try:
        truth: Any = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        expected = [
            [truth(text, **form)["input_ids"] for text in TEXTS] for form in ({}, {"add_special_tokens": False})
        ]
    except Exception:  # noqa: BLE001  # as many kinds as there are wrong values
        with pytest.raises(CheckpointError):  # an unknown word is one at the first text
            ours(folder).with_special_tokens(TEXTS)
        return "refused by transformers too"
    try:
        loaded = ours(folder)
    except CheckpointError as error:
        return "refused" if str(folder) in str(error) else f"an error without a file: {error}"
    assert loaded.with_special_tokens(TEXTS) == expected[0]
    assert [encoding.ids for encoding in loaded.encode(TEXTS, with_offsets=True)] == expected[1]
    for text in TEXTS:
        pair, encoding = truth(text, TEXTS[0], return_token_type_ids=True), loaded.backend.encode(text, TEXTS[0])
        assert (encoding.ids, encoding.type_ids) == (pair["input_ids"], pair["token_type_ids"])
    return "computed"


def ours(folder: Path) -> Tokenizer:
    return Tokenizer(auto_tokenizer.load(folder)[0], folder / "tokenizer.json")


@pytest.mark.slow
@pytest.mark.gate(only=lambda start: start == 0)
@pytest.mark.parametrize("start", range(0, 432, 24))
def test_random_directories(tmp_path: Path, start: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(start, start + 24):
        what = write(tmp_path / f"{seed}", seed)
        try:
            counts[compared(tmp_path / f"{seed}")] += 1
        except AssertionError as error:
            raise AssertionError(what) from error
    assert counts["computed"] >= 16, counts


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_computed(tmp_path: Path, family: str) -> None:
    for number, make in enumerate(FAMILIES[family]):
        folder = tmp_path / str(number)
        make().save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
        assert compared(folder) == "computed"


def marked(content: str, **options: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return plain | {"content": content, "__type": "AddedToken"} | options


_BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
_XLM = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>",
}  # fmt: skip
_WORDS = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
# tokenizer_config.json of published models: the family, which of its tokenizers, and whether the file lists the added tokens.
PUBLISHED: Mapping[str, tuple[str, int, bool, dict[str, Any]]] = {
    "bge-small-en-v1.5": ("bert", 0, True, _WORDS | _BERT | {
        "clean_up_tokenization_spaces": True, "do_basic_tokenize": True, "model_max_length": 512, "never_split": None,
        "tokenizer_class": "BertTokenizer",
    }),
    "all-mpnet-base-v2": ("mpnet", 0, False, _WORDS | _XLM | {
        "unk_token": "[UNK]", "mask_token": "<mask>", "model_max_length": 512, "special_tokens_map_file": None,
        "name_or_path": "microsoft/mpnet-base", "tokenizer_class": "MPNetTokenizer",
    }),
    "all-distilroberta-v1": ("roberta", 0, False, {
        **{key: marked(token, normalized=True) for key, token in _XLM.items()}, "mask_token": marked("<mask>", lstrip=True, normalized=True),
        "add_prefix_space": False, "errors": "replace", "trim_offsets": True, "tokenizer_class": "RobertaTokenizer",
    }),
    "Qwen3-Embedding-0.6B": ("qwen3", 0, True, {
        "add_bos_token": False, "add_prefix_space": False, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None,
        "chat_template": "{{ messages }}", "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }),
    "DeepSeek-R1-Distill-Llama-8B": ("llama", 1, False, {
        "add_bos_token": True, "add_eos_token": False, "bos_token": marked("<s>", normalized=True), "eos_token": marked("</s>"),
        "legacy": True, "sp_model_kwargs": {}, "unk_token": None, "tokenizer_class": "LlamaTokenizerFast",
    }),
    "gemma-2-2b": ("gemma2", 0, True, {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>",
        "sp_model_kwargs": {}, "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizer", "use_default_system_prompt": False,
    }),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_directories_are_computed(tmp_path: Path, name: str) -> None:
    family, which, lists_added, settings = PUBLISHED[name]
    FAMILIES[family][which]().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    if lists_added:
        added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
        decoder = {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in added}
        settings = settings | {"added_tokens_decoder": decoder}
    else:
        tokens = {key: value for key, value in settings.items() if key in SPECIAL and value is not None}
        plain = {
            key: {k: v for k, v in value.items() if k != "__type"}
            for key, value in tokens.items()
            if isinstance(value, dict)
        }
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens | plain))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert compared(tmp_path) == "computed"


def test_dropout_is_off_by_a_class_and_refused_without_one(tmp_path: Path) -> None:
    FAMILIES["gpt2"][0]().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    described = json.loads(path.read_text())
    described["model"]["dropout"] = 0.5
    path.write_text(json.dumps(described))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert compared(tmp_path) == "computed"
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: dropout must be null, not 0\.5"):
        ours(tmp_path)


# The table


def test_families_and_classes_are_those_of_transformers() -> None:
    wrong = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    for kind in families.model_types():
        family = families.family_of(kind, "")
        assert family.forces_tokenizer == (kind in wrong), kind
        # Two depend on packages: the first on mistral_common, and the second on sentencepiece.
        if kind not in ("mistral", "marian"):
            assert family.tokenizer == tokenization_auto.TOKENIZER_MAPPING_NAMES.get(kind), kind


def test_every_setting_of_a_class_has_a_rule() -> None:
    for name, kind in KINDS.items():
        maker = getattr(transformers, name)
        parameters = inspect.signature(maker.__init__).parameters
        defaults = {key: p.default for key, p in parameters.items() if p.default is not inspect.Parameter.empty}
        for key, default in defaults.items():
            if key in kind.switches:
                assert kind.switches[key] == default, (name, key)
            elif key in SPECIAL:
                assert str(kind.tokens[key]) == str(default), (name, key)
        assert set(kind.switches) | set(kind.tokens) <= set(defaults), name


def tables() -> str:
    """The table of the page."""
    parts = ["| `tokenizer_class` | keys that it reads, with their defaults |", "| --- | --- |"]
    for name, kind in sorted(KINDS.items()):
        switches = ", ".join(f"`{key}` {json.dumps(value)}" for key, value in sorted(kind.switches.items()))
        parts.append(f"| `{name}` | {switches or 'no keys'} |")
    return "\n".join(parts)


def test_the_page_shows_the_rules() -> None:
    assert tables() in PAGE.read_text(encoding="utf-8"), f"docs/reference/model-options.md must contain:\n\n{tables()}"
    assert all(f"`{key}`" in PAGE.read_text(encoding="utf-8") for key in (*SPECIAL, *LISTS, *SWITCHES, *REJECTED))
