"""Directories of tokenizers with random settings, as transformers and people write them; the truth is AutoTokenizer."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "The cat sat on the mat.",
    "  two leading spaces, and  two within",
    "na\u00efve caf\u00e9 \u00c9COLE \u00dcber",
    "e\u0301 combining, and \ufb01 ligature \u2460",
    "\u6771\u4eac\u90fd\u306b\u4f4f\u3080",
    "\u4e2d\u6587 mixed with English words",
    "[MASK] [CLS] a [SEP] b <s> c </s> <mask> <unk> [UNK]",
    "<|endoftext|> x <image> y<image>z <extra_id_0> zebra ZEBRA",
    "emoji \U0001f642\U0001f469\u200d\U0001f4bb here",
    "''quoted'' ``text`` it's DON'T 12345",
    "tab\tnew\nline \u00a0nbsp",
    "\u0130stanbul STRASSE stra\u00dfe",
]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_LETTERS = sorted(set("".join(TEXTS)) - set(" \t\n"))
_WORDS = sorted({word for text in TEXTS for word in text.split()})


def _word_piece(special: Sequence[str]) -> dict[str, int]:
    pieces = [*special, *_LETTERS, *("##" + letter for letter in _LETTERS), *_WORDS, *(word.lower() for word in _WORDS)]
    return {piece: row for row, piece in enumerate(dict.fromkeys(pieces))}


def _unigram(special: Sequence[str]) -> list[tuple[str, float]]:
    pieces = dict.fromkeys([*special, "\u2581", *_LETTERS], -6.0) | {"\u2581" + word: -3.0 for word in _WORDS}
    return list((pieces | {word.lower(): -4.0 for word in _WORDS}).items())


def _pairs(alphabet: Sequence[str], steps: Any, size: int, special: Sequence[str]) -> tuple[dict[str, int], list]:
    """Train byte pairs, and return the vocabulary with the merges."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = steps
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet)
    made.train_from_iterator(TEXTS, trainer)
    model = json.loads(made.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def _byte_pairs(special: Sequence[str]) -> tuple[dict[str, int], list]:
    return _pairs(pre_tokenizers.ByteLevel.alphabet(), pre_tokenizers.ByteLevel(False), 380, special)


def _sentence_pairs(special: Sequence[str]) -> tuple[dict[str, int], list]:
    vocabulary, merges = _pairs([*_LETTERS, "\u2581"], pre_tokenizers.Metaspace(), 300, special)
    return vocabulary | {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}, merges


def _of_words(name: str, special: Sequence[str] = _SPECIAL) -> Callable[[], Any]:
    return lambda: _class(name)(vocab=_word_piece(special))


def _of_pieces(name: str, special: Sequence[str], **more: Any) -> Callable[[], Any]:
    return lambda: _class(name)(vocab=_unigram(special), **more)


def _of_pairs(name: str, special: Sequence[str], *, make: Callable = _byte_pairs, **more: Any) -> Any:
    vocabulary, merges = make(special)
    return _class(name)(vocab=vocabulary, merges=merges, **more)


def _class(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def _of_file(make: Callable, *, normalizer: Any, pre_tokenizer: Any, special: Sequence[str], **more: Any) -> Any:
    """With the steps of a tokenizer.json alone, as PreTrainedTokenizerFast has them."""
    content = make(special)
    if isinstance(content, tuple):
        model: Any = models.BPE(*content, **more)
    elif isinstance(content, dict):
        model = models.WordPiece(content, unk_token=special[1])
    else:
        model = models.Unigram(content, 3)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, pre_tokenizer, decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    rows = [(token, backend.token_to_id(token)) for token in (special[0], special[2])]
    template = f"{special[0]} $A {special[2]}"
    backend.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} $B:1 {special[2]}:1", special_tokens=rows
    )
    return _class("PreTrainedTokenizerFast")(tokenizer_object=backend)


_TRIE = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
# By model_type: the tokenizers that directories of it have.
FAMILIES: Mapping[str, Sequence[Callable[[], Any]]] = {
    "bert": [_of_words("BertTokenizer"), partial(_of_file, _word_piece, normalizer=normalizers.BertNormalizer(lowercase=False), pre_tokenizer=pre_tokenizers.BertPreTokenizer(), special=_SPECIAL)],
    "distilbert": [_of_words("DistilBertTokenizer")],
    "electra": [_of_words("BertTokenizer")],
    "nomic_bert": [_of_words("BertTokenizer")],
    "mpnet": [_of_words("MPNetTokenizer", ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"])],
    "roberta": [partial(_of_pairs, "RobertaTokenizer", _ROBERTA)],
    "gpt2": [partial(_of_pairs, "GPT2Tokenizer", ["<|endoftext|>"])],
    "qwen2": [partial(_of_pairs, "Qwen2Tokenizer", ["<|endoftext|>", "<|im_start|>"])],
    "qwen3": [partial(_of_pairs, "Qwen2Tokenizer", ["<|endoftext|>", "<|im_start|>"])],
    "modernbert": [partial(_of_file, _byte_pairs, normalizer=normalizers.NFC(), pre_tokenizer=pre_tokenizers.ByteLevel(False), special=["[CLS]", "[UNK]", "[SEP]", "[PAD]", "[MASK]"])],
    "eurobert": [partial(_of_file, _byte_pairs, normalizer=None, pre_tokenizer=pre_tokenizers.ByteLevel(False), special=["<s>", "<unk>", "</s>"])],
    "t5": [_of_pieces("T5Tokenizer", ["<pad>", "</s>", "<unk>", *(f"<extra_id_{x}>" for x in range(4))], extra_ids=4)],
    "mt5": [_of_pieces("T5Tokenizer", ["<pad>", "</s>", "<unk>"], extra_ids=0)],
    "xlm-roberta": [_of_pieces("XLMRobertaTokenizer", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), partial(_of_file, _unigram, normalizer=normalizers.NFKC(), pre_tokenizer=_TRIE, special=_ROBERTA)],
    "gte": [_of_pieces("XLMRobertaTokenizer", ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])],
    "camembert": [_of_pieces("CamembertTokenizer", ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>"])],
    "albert": [_of_pieces("AlbertTokenizer", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])],
    "llama": [partial(_of_pairs, "LlamaTokenizer", ["<unk>", "<s>", "</s>"], make=_sentence_pairs), partial(_of_file, _byte_pairs, normalizer=None, pre_tokenizer=pre_tokenizers.ByteLevel(False), special=["<s>", "<unk>", "</s>"])],
    "mistral": [partial(_of_pairs, "LlamaTokenizer", ["<unk>", "<s>", "</s>"], make=_sentence_pairs)],
    "gemma2": [partial(_of_pairs, "GemmaTokenizer", ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], make=_sentence_pairs)],
    "gemma3_text": [partial(_of_pairs, "GemmaTokenizer", ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], make=_sentence_pairs)],
}  # fmt: skip
_FLAGS = (
    "do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "split_special_tokens", "keep_accents", "legacy",
    "add_bos_token", "add_eos_token", "clean_up_tokenization_spaces", "do_basic_tokenize", "trim_offsets", "use_fast", "from_slow",
    "clean_text", "remove_space", "add_dummy_prefix_space",
)  # fmt: skip
_CLASSES = (
    "BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "RobertaTokenizerFast", "GPT2Tokenizer", "Qwen2TokenizerFast",
    "T5TokenizerFast", "XLMRobertaTokenizer", "AlbertTokenizer", "LlamaTokenizerFast", "GemmaTokenizerFast",
    "PreTrainedTokenizerFast", "TokenizersBackend", "PreTrainedTokenizer", "MPNetTokenizerFast", "BartTokenizer", "CamembertTokenizer",
    "NoSuchTokenizer",
)  # fmt: skip
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token")
_CONTENTS = ("[MASK]", "<mask>", "<image>", "zebra", "</s>", "[SEP]", "cat", "<|endoftext|>", "<unk>", "[UNK]")


def write(folder: Path, seed: int) -> str:
    """A directory, and what it is in words."""
    pick = random.Random(seed)
    family = pick.choice(sorted(FAMILIES))
    folder.mkdir()
    pick.choice(FAMILIES[family])().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    changes = [pick.choice(_CHANGES) for _ in range(pick.choice([0, 1, 1, 2, 2, 3, 5]))]
    path = folder / "tokenizer_config.json"
    for change in changes:
        settings = json.loads(path.read_text())
        change(pick, folder, settings)
        path.write_text(json.dumps(settings))
    names = ", ".join(change.__name__ for change in changes)
    return f"{seed}: {family}: {names}: {path.read_text()}"


def _set(pick: random.Random, folder: Path, settings: dict) -> None:
    key, values = pick.choice(_SETTINGS)
    settings[key] = pick.choice(values)


def _no_class(pick: random.Random, folder: Path, settings: dict) -> None:
    settings.pop("tokenizer_class", None)


def _token_value(pick: random.Random, marked: bool) -> Any:
    content = pick.choice(_CONTENTS)
    options = {key: pick.random() < 0.4 for key in ("single_word", "lstrip", "rstrip", "normalized")}
    described = {"content": content, **options} | ({"__type": "AddedToken"} if marked else {})
    return content if pick.random() < 0.5 else described


def _named_token(pick: random.Random, folder: Path, settings: dict) -> None:
    settings[pick.choice(_NAMES)] = pick.choice([_token_value(pick, True), _token_value(pick, True), None])


def _extra(pick: random.Random, folder: Path, settings: dict) -> None:
    key = pick.choice(["extra_special_tokens", "additional_special_tokens"])
    tokens = [_token_value(pick, True) for _ in range(pick.choice([0, 1, 3]))]
    settings[key] = pick.choice([tokens, tokens, {"video_token": "<image>"}, None, {}])


def _decoder(pick: random.Random, folder: Path, settings: dict) -> None:
    """The added tokens of tokenizer.json, as versions before 5 wrote them."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    by_id = {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in added}
    if by_id and pick.random() < 0.4:
        by_id.pop(pick.choice(sorted(by_id)))
    if pick.random() < 0.4:
        by_id[str(pick.choice([5, 600, 1000]))] = {
            "content": pick.choice(_CONTENTS), "special": pick.random() < 0.5, "normalized": pick.random() < 0.5, "lstrip": pick.random() < 0.3,
        }  # fmt: skip
    settings["added_tokens_decoder"] = by_id


def _map(pick: random.Random, folder: Path, settings: dict) -> None:
    content: dict[str, Any] = {name: _token_value(pick, False) for name in pick.sample(_NAMES, 3)}
    if pick.random() < 0.4:
        content["additional_special_tokens"] = pick.sample(_CONTENTS, 2)
    if pick.random() < 0.3:
        content["extra_special_tokens"] = [_token_value(pick, False) for _ in range(2)]
    (folder / "special_tokens_map.json").write_text(json.dumps(content))


def _added(pick: random.Random, folder: Path, settings: dict) -> None:
    (folder / "added_tokens.json").write_text(
        json.dumps({content: 700 + row for row, content in enumerate(pick.sample(_CONTENTS, 2))})
    )


def _changed_file(pick: random.Random, folder: Path, settings: dict) -> None:
    """tokenizer.json says something else than the class would make."""
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    part, value = pick.choice(_STEPS)
    inner = described["model"] if part in _OF_MODEL else described
    if part not in _OF_MODEL or part in inner:
        inner[part] = value
    if part == "added_tokens" and pick.random() < 0.5:
        described["post_processor"] = None
    path.write_text(json.dumps(described))


# Settings of tokenizer_config.json, and parts of tokenizer.json.
_FLAG = [True, False, True, False, None]
_SETTINGS = [
    *((key, _FLAG) for key in _FLAGS * 3), *(("tokenizer_class", _CLASSES),) * 12, ("model_max_length", [8]), ("extra_ids", [0, 2, 4, 100]),
    ("padding_side", ["left"]), ("truncation_side", ["left"]), ("errors", ["strict"]), ("model_input_names", [["input_ids"]]),
    ("chat_template", ["{{ messages }}"]), ("tokenizer_file", ["/none"]), ("vocab_file", ["/none"]), ("max_len", [5]), ("max_length", [5]),
    ("backend", ["tokenizers"]), ("processor_class", ["X"]), ("unk_id", [1]), ("vocab", [{"a": 0}]),
    ("auto_map", [{"AutoTokenizer": ["x.X", None]}]), ("do_lower_case", ["false"]),
]  # fmt: skip
_OF_MODEL = ("dropout", "ignore_merges", "byte_fallback", "fuse_unk", "unk_id", "max_input_chars_per_word")
_STEPS = [
    ("normalizer", {"type": "Lowercase"}), ("normalizer", None), ("pre_tokenizer", {"type": "Whitespace"}), ("post_processor", None),
    ("truncation", {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}),
    ("padding", {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}),
    ("added_tokens", []),
    ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}),
    *zip(_OF_MODEL, (0.3, True, True, True, 3, 4), strict=True),
]  # fmt: skip
_CHANGES: Sequence[Callable[[random.Random, Path, dict], None]] = (
    _set, _set, _set, _set, _set, _no_class, _named_token, _named_token, _extra, _decoder, _map, _added, _changed_file, _changed_file,
)  # fmt: skip
