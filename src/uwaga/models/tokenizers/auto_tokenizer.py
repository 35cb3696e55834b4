"""The tokenizer that AutoTokenizer of transformers 5 makes of a directory.

tokenizer.json alone does not say it. A class, which tokenizer_config.json or config.json names, takes the vocabulary of tokenizer.json and
makes the other steps from settings of tokenizer_config.json. Then tokens of up to four files are added. This module gives the
same ids without transformers, for the classes of the families that uwaga computes; transformers makes all other tokenizers, and those with rare keys.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import Integer, Switch, Text, Words
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import transformers_directories
from uwaga.models.checkpoints.config_json import setting
from uwaga.models.tokenizers.tokenizer import FILE, build, library_errors, parse

SETTINGS = "tokenizer_config.json"
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
_FILES = f"{FILE}, {SETTINGS}, {MAP} or {ADDED}"
# Special tokens: their keys in tokenizer_config.json and, with the suffix _id, in config.json.
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# The class that reads tokenizer.json as it is, and other names of it.
_AS_IT_IS = "TokenizersBackend"
_AS_IT_IS_TOO = (_AS_IT_IS, "PreTrainedTokenizer", "PythonBackend", "BloomTokenizer")
_ALIASES = {
    "BartTokenizer": "RobertaTokenizer", "DistilBertTokenizer": "BertTokenizer", "ElectraTokenizer": "BertTokenizer",
    "LongformerTokenizer": "RobertaTokenizer", "MobileBertTokenizer": "BertTokenizer",
}  # fmt: skip
# Keys of tokenizer_config.json that put something else in the place of tokenizer.json or of a part of it.
REJECTED = (
    "_json_padding", "_json_truncation", "_spm_precompiled_charsmap", "fast_tokenizer_files", "fix_mistral_regex", "gguf_file", "init_inputs",
    "merges", "post_processor", "tokenizer_object", "tokenizer_padding", "tokenizer_truncation", "unk_id", "vocab",
)  # fmt: skip
# Of settings, by the types of their defaults; of the others: a switch that may be null, unless it is on.
_RULES: Mapping[type, Any] = {int: Annotated[Integer, Ge(0), Le(1000)]}
# For all classes.
SWITCHES = {"split_special_tokens": False}
LISTS = ("extra_special_tokens", "additional_special_tokens")

Token = str | AddedToken


@dataclass(frozen=True, slots=True)
class Settings:
    """What the files say, with the defaults of the class."""

    path: Path
    values: Mapping[str, Any]
    tokens: Mapping[str, Token | None]
    charsmap: normalizers.Precompiled | None

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def token(self, key: str) -> str:
        """Return the text of a special token that a step needs. Raises CheckpointError."""
        if (token := self.tokens.get(key)) is None:
            raise CheckpointError(f"{self.path}: {key} must be a token, not null: its tokenizer_class needs it")
        return str(token)


class Kind(NamedTuple):
    """A class of tokenizers.

    model: keys of `model` in tokenizer.json that it sets. tokens: special tokens, where no file names them. switches: settings that it
    reads, with their defaults. steps: the parts of a tokenizer that it makes. post_processor: its post-processor, of the tokenizer with its tokens;
    None: that of tokenizer.json. extras: what it makes of additional_special_tokens; None: no file has that key.
    """

    model: Mapping[str, Any]
    tokens: Mapping[str, Token | None]
    switches: Mapping[str, bool | int | None]
    steps: Callable[[Settings], Mapping[str, Any]]
    post_processor: Callable[[Settings, Backend], Any] | None = None
    extras: Callable[[Settings, Sequence[Token] | None], Sequence[Token]] = lambda s, tokens: tokens or ()
    is_file_first: bool = False  # a post-processor of tokenizer.json counts more than `post_processor`
    resets_special: bool = False  # special tokens are added once more, without options


def load(folder: Path) -> tuple[Backend, frozenset[str]]:
    """Return the tokenizers.Tokenizer of a directory, and its tokens that no file has. Raises CheckpointError.

    The class adds those tokens after all others, and the model may have no row for them.
    """
    path = folder / FILE
    described, config, settings = _files(folder)
    setting(config, folder / "config.json", "model_type", Text | None, None)
    maps = settings.get("auto_map")
    if maps and (not isinstance(maps, dict) or "AutoTokenizer" in maps):
        why = "auto_map names code of the directory, which is never run here; save the tokenizer with transformers"
        raise CheckpointError(f"{folder / SETTINGS}: {why}, and leave auto_map out")
    for key in REJECTED:
        if settings.get(key):
            raise CheckpointError(f"{folder / SETTINGS}: {key} is not read; what it says belongs in {FILE}")
    name = _class_name(config, settings, described)
    kind = KINDS.get(name or "")
    with library_errors(folder / _FILES):
        tokens = None if kind is None else _tokens(folder, described, settings)
    if kind is None or tokens is None:
        return _of_transformers(folder, "its class" if name is None else f"tokenizer_class {printable(name)}")
    values: dict[str, Any] = SWITCHES | dict(kind.switches)
    for key, default in values.items():
        rule = Switch if default is True else _RULES.get(type(default), Switch | None)
        values[key] = setting(settings, folder / SETTINGS, key, rule, default)
    with library_errors(path):
        read = Settings(path, values, _named(kind, described, tokens.named), _charsmap(described.get("normalizer")))
        return _made(kind, described, read, tokens, path)


def special_tokens(folder: Path) -> dict[str, str] | None:
    """Return the special tokens of a directory and of its class by their keys; None: only transformers knows them.

    Raises CheckpointError.
    """
    described, config, settings = _files(folder)
    kind = KINDS.get(_class_name(config, settings, described) or "")
    with library_errors(folder / _FILES):
        tokens = None if kind is None else _tokens(folder, described, settings)
    if kind is None or tokens is None:
        return None
    named = _named(kind, described, tokens.named)
    return {key: str(token) for key, token in named.items() if token is not None}


def _files(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Read tokenizer.json, config.json and tokenizer_config.json; the last two may be absent."""
    config, settings = (untrusted.read_json(folder / name, missing_ok=True) for name in ("config.json", SETTINGS))
    return parse(folder / FILE), config, settings


def _named(kind: Kind, described: Mapping[str, Any], tokens: Mapping[str, Token | None]) -> dict[str, Token | None]:
    """Return special tokens by their keys. Tokens of the files replace those of the class."""
    named = dict(kind.tokens) | {key: _styled(token, kind.tokens.get(key)) for key, token in tokens.items()}
    if kind is KINDS[_AS_IT_IS] and (padding := described.get("padding")):
        named = {"pad_token": padding["pad_token"]} | named
    return named


def _styled(token: Token | None, default: Token | None) -> Token | None:
    """Return a token with the options that its class gives it, if it has no options of its own."""
    if not isinstance(token, str) or not isinstance(default, AddedToken):
        return token
    return AddedToken(token, lstrip=default.lstrip, special=default.special, normalized=default.normalized)


def _class_name(config: Mapping[str, Any], settings: Mapping[str, Any], described: Mapping[str, Any]) -> str | None:
    """Return the class that AutoTokenizer.from_pretrained chooses; None: its family is not one of ours."""
    from uwaga.models.families import family_of, model_types

    kind, registered, is_forced = config.get("model_type"), None, False
    if (kind is not None and kind not in model_types()) or config.get("model_name"):
        return None
    if kind is not None:
        family = family_of(kind, SETTINGS)
        registered, is_forced = family.tokenizer, family.forces_tokenizer
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if not isinstance(name, str):
        return registered or _AS_IT_IS
    name = name.removesuffix("Fast")
    if registered not in (None, name) and (registered == _AS_IT_IS or is_forced):
        return registered
    if name == "LlamaTokenizer" and '"ByteLevel"' in json.dumps(described):
        return _AS_IT_IS
    return _AS_IT_IS if name in _AS_IT_IS_TOO else _ALIASES.get(name, name)


def _of_transformers(folder: Path, shown: str) -> tuple[Backend, frozenset[str]]:
    path = folder / FILE
    advice = f'to read {FILE} as it is, set "tokenizer_class": "{_AS_IT_IS}" in {SETTINGS}'
    if find_spec("transformers") is None:
        rule = f"transformers makes {shown}, with these keys: pip install 'transformers>=5'; or, {advice}"
        raise CheckpointError(f"{path}: {rule}")
    import transformers

    with transformers_directories.reading(folder, _FILES):
        made = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    backend = getattr(made, "backend_tokenizer", None)
    if not isinstance(backend, Backend):
        raise CheckpointError(f"{path}: {shown} does not read {FILE}; {advice}")
    return backend, frozenset()


# Settings


class _Tokens(NamedTuple):
    """Tokens that the files add: by id, by their key, and others that are special."""

    by_id: Mapping[int, AddedToken]
    named: Mapping[str, Token | None]
    extra: Sequence[Token] | None  # extra_special_tokens; None: no file has the key
    additional: Sequence[Token] | None


def _tokens(folder: Path, described: Mapping[str, Any], settings: Mapping[str, Any]) -> _Tokens | None:
    """Merge the files as PreTrainedTokenizerBase._from_pretrained does; None: they have rare keys. Raises CheckpointError."""
    path, fields, is_rare = folder / SETTINGS, dict(settings), False
    first, second = LISTS
    if second in fields and not fields.get(first):
        fields[first] = fields.pop(second)
    if "added_tokens_decoder" in fields:
        decoder = setting(fields, path, "added_tokens_decoder", dict[str, Any], None)
        by_id = {int(number): _added(token) for number, token in decoder.items()}
    else:
        by_id = {added["id"]: _added(added) for added in described.get("added_tokens") or ()}
        for key, value in untrusted.read_json(folder / MAP, missing_ok=True).items():
            is_rare |= key == first
            fields[key] = _added(value | {"special": True}) if isinstance(value, dict) else value
        is_rare |= not by_id.keys() >= {*untrusted.read_json(folder / ADDED, missing_ok=True).values()}
    others = [x for key, x in fields.items() if key.endswith("_token") and key not in SPECIAL]
    is_rare |= any(isinstance(x, dict | Token) for x in (*others, fields.get("model_specific_special_tokens")))
    if is_rare or any(isinstance(fields.get(key), dict) for key in LISTS):
        return None
    contents = {str(token): token for token in by_id.values()}
    named = {key: _token(fields[key]) for key in SPECIAL if key in fields}
    named = {key: token if token is None else contents.get(str(token), token) for key, token in named.items()}
    rule = Annotated[list, Words("a list of tokens")] | None
    extra, additional = (
        [token for x in setting(fields, path, key, rule, None) or () if (token := _token(x)) is not None]
        if key in fields
        else None
        for key in LISTS
    )
    return _Tokens(by_id, named, extra, additional)


def _token(value: Any) -> Token | None:
    return value if value is None or (isinstance(value, Token) and value != "") else _added(value)


def _added(value: Any) -> AddedToken:
    return AddedToken(
        value["content"], **{key: x for key, x in value.items() if key not in ("__type", "content", "id")}
    )


# The tokenizer


def _made(
    kind: Kind, described: dict[str, Any], read: Settings, tokens: _Tokens, path: Path
) -> tuple[Backend, frozenset[str]]:
    """Make the tokenizer, as the class of transformers and TokenizersBackend.__init__ make it."""
    if kind is not KINDS[_AS_IT_IS]:
        described = described | _model(kind, described["model"], read, path)
    backend = build(described)
    for part, step in kind.steps(read).items():
        setattr(backend, part, step)
    named = {key: read.tokens[key] for key in (*SPECIAL, *read.tokens) if key in read.tokens}
    additional = kind.extras(read, tokens.additional)
    extra = additional if tokens.extra is None else tokens.extra
    unnamed = {str(named[key]) for key in named if key not in tokens.named and named[key] is not None}
    unnamed |= set(map(str, extra)) - set(map(str, tokens.additional or tokens.extra or ()))
    defaults = frozenset(token for token in unnamed if backend.token_to_id(token) is None)
    _add_tokens(backend, tokens.by_id, named, extra)
    if kind.resets_special:
        names = dict.fromkeys(str(value) for value in (*named.values(), *extra) if value is not None)
        backend.add_tokens([AddedToken(name, special=True) for name in names])
    if kind.post_processor is not None:
        template = kind.post_processor(read, backend)
        backend.post_processor = (kind.is_file_first and backend.post_processor) or template
    backend.encode_special_tokens = read["split_special_tokens"]
    return backend, defaults


def _model(kind: Kind, model: dict[str, Any], read: Settings, path: Path) -> dict[str, Any]:
    """Return what the class takes of tokenizer.json: the vocabulary, the merges, and the post-processor."""
    kind_name = kind.model["type"]
    if (stored := model.get("type", kind_name)) != kind_name:
        raise CheckpointError(
            f"{path}: its model is {printable(str(stored))}, and transformers reads it as {kind_name}, by tokenizer_class of {SETTINGS} or model_type "
            f'of config.json; to read the file as it is, set "tokenizer_class": "{_AS_IT_IS}" in {SETTINGS}'
        )
    result = dict(kind.model) | {key: model[key] for key in ("vocab", "merges") if key in model}
    for key, value in kind.model.items():
        if callable(value):
            result[key] = value(read, model)
    return {"model": result, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "decoder": None}


def _add_tokens(
    backend: Backend, by_id: Mapping[int, AddedToken], named: Mapping[str, Token | None], extra: Sequence[Token]
) -> None:
    added: list[Token] = [by_id[number] for number in sorted(by_id)]
    existing = {token.content for token in backend.get_added_tokens_decoder().values()} | set(map(str, added))
    for token in (*named.values(), *extra):
        if token is not None and str(token) not in existing and token not in added:
            added.append(token)
    names = {str(token) for token in named.values() if token}
    for index, token in enumerate(added):
        if isinstance(token, str):
            added[index] = AddedToken(token, special=True)
        elif not token.special and token.content in names:
            token.special = True
    backend.add_tokens(added)


def _charsmap(normalizer: Any) -> normalizers.Precompiled | None:
    """Return the table of SentencePiece in the normalizer of tokenizer.json."""
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    for step in steps:
        if step.get("type") == "Precompiled":
            return normalizers.Precompiled(base64.b64decode(step["precompiled_charsmap"]))
    return None


# The classes


def _words(s: Settings) -> dict[str, Any]:
    return {
        "normalizer": normalizers.BertNormalizer(
            True, s["tokenize_chinese_chars"], s["strip_accents"], s["do_lower_case"]
        ),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.WordPiece("##"),
    }


def _bytes(s: Settings) -> dict[str, Any]:
    return {"pre_tokenizer": pre_tokenizers.ByteLevel(s["add_prefix_space"]), "decoder": decoders.ByteLevel()}


def _qwen(s: Settings) -> dict[str, Any]:
    by_level = pre_tokenizers.ByteLevel(s["add_prefix_space"] or False, use_regex=False)
    steps: list[Any] = [pre_tokenizers.Split(Regex(QWEN), "isolated"), by_level]
    both = pre_tokenizers.Sequence(steps)
    return {"normalizer": normalizers.NFC(), "pre_tokenizer": both, "decoder": decoders.ByteLevel()}


def _pieces(s: Settings) -> dict[str, Any]:
    scheme = "always" if s.values.get("add_prefix_space", True) else "never"
    steps: list[Any] = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", scheme)]
    result = {"pre_tokenizer": pre_tokenizers.Sequence(steps), "decoder": decoders.Metaspace("▁", scheme)}
    return result if s.charsmap is None else result | {"normalizer": s.charsmap}


def _albert(s: Settings) -> dict[str, Any]:
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not s["keep_accents"]:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if s["do_lower_case"]:
        steps.append(normalizers.Lowercase())
    if s.charsmap is not None:
        steps.append(s.charsmap)
    return _pieces(s) | {"normalizer": normalizers.Sequence(steps)}


_OF_PIECES: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def _llama(s: Settings) -> dict[str, Any]:
    has_prefix = s["add_prefix_space"] is not False
    scheme = "never" if not has_prefix else "always" if s["legacy"] else "first"
    steps = [*_OF_PIECES, *([decoders.Strip(" ", 1)] if has_prefix else [])]
    return {"pre_tokenizer": pre_tokenizers.Metaspace("▁", scheme, False), "decoder": decoders.Sequence(steps)}


def _gemma(s: Settings) -> dict[str, Any]:
    return {
        "normalizer": normalizers.Replace(" ", "▁"),
        "pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_previous"),
        "decoder": decoders.Sequence(_OF_PIECES),
    }


def _template(single: str, pair: str, **names: str) -> Callable[[Settings, Backend], Any]:
    """Return what makes a post-processor of one text and of two. names: what special tokens are called, by key; "": as the files call them."""

    def post_processor(s: Settings, backend: Backend) -> Any:
        tokens = {key: s.token(f"{key}_token") for key in names}
        shown = {key: name or tokens[key] for key, name in names.items()}
        used = [(shown[key], backend.token_to_id(token)) for key, token in tokens.items()]
        forms = {"single": single.format(**shown), "pair": pair.format(**shown)}
        return processors.TemplateProcessing(**forms, special_tokens=used)

    return post_processor


_BERT_FORMS = "{cls}:0 $A:0 {sep}:0", "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"
_around_bert = _template(*_BERT_FORMS, cls="", sep="")
_around_albert = _template(*_BERT_FORMS, cls="[CLS]", sep="[SEP]")
_around_xlmr = _template("{bos} $A {eos}", "{bos} $A {eos} {eos} $B {eos}", bos="", eos="")
_around_t5 = _template("$A {eos}", "$A {eos} $B {eos}", eos="</s>")


def _around_roberta(s: Settings, backend: Backend) -> Any:
    cls, sep = s.token("cls_token"), s.token("sep_token")
    ends: Any = [(token, backend.token_to_id(token)) for token in (sep, cls)]
    trim, prefix = s.values.get("trim_offsets", True), s.values.get("add_prefix_space", False)
    return processors.RobertaProcessing(ends[0], ends[1], trim, prefix)


def _extra_ids(s: Settings, tokens: Sequence[Token] | None) -> Sequence[Token]:
    numbered = [f"<extra_id_{number}>" for number in range(s["extra_ids"])]
    found = sum("<extra_id_" in str(text) for text in tokens or ())
    if found and s["extra_ids"] not in (0, found):
        raise CheckpointError(
            f"{s.path}: extra_ids is {s['extra_ids']}, and {LISTS[1]} has {found} tokens <extra_id_...>"
        )
    return tokens or () if found else [*(tokens or ()), *numbered]


def _unknown_of(s: Settings, model: Mapping[str, Any]) -> str:
    return s.token("unk_token")


def _unknown_row(s: Settings, model: Mapping[str, Any]) -> int:
    pieces = [piece[0] for piece in model["vocab"]]
    return pieces.index(s.token("unk_token")) if s.token("unk_token") in pieces else 0


# Of Qwen2Tokenizer.
QWEN = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
_XLM_TOKENS: dict[str, Token | None] = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>",
    "mask_token": "<mask>",
}  # fmt: skip
_BERT_TOKENS: dict[str, Token | None] = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
_BERT_SWITCHES = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
_WORD_PIECE = {
    "type": "WordPiece",
    "unk_token": _unknown_of,
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
_BPE = {"type": "BPE", "fuse_unk": False}
_END = "<|endoftext|>"


KINDS: Mapping[str, Kind] = {
    _AS_IT_IS: Kind({}, {}, {}, lambda s: {}),
    "BertTokenizer": Kind(_WORD_PIECE, _BERT_TOKENS, _BERT_SWITCHES, _words, _around_bert),
    "MPNetTokenizer": Kind(
        _WORD_PIECE,
        {key: AddedToken(str(token), lstrip=key == "mask_token") for key, token in (_XLM_TOKENS | {"unk_token": "[UNK]"}).items()},
        _BERT_SWITCHES, _words, _around_roberta,
    ),
    "RobertaTokenizer": Kind(
        _BPE, _XLM_TOKENS, {"add_prefix_space": False, "trim_offsets": True}, _bytes, _around_roberta
    ),
    "GPT2Tokenizer": Kind(
        _BPE, {"unk_token": _END, "bos_token": _END, "eos_token": _END, "pad_token": None}, {"add_prefix_space": False}, _bytes
    ),
    "Qwen2Tokenizer": Kind(
        _BPE, {"unk_token": _END, "bos_token": None, "eos_token": _END, "pad_token": _END}, {"add_prefix_space": None}, _qwen,
        resets_special=True,
    ),
    "T5Tokenizer": Kind(
        {"type": "Unigram", "unk_id": 2}, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}, {"extra_ids": 100}, _pieces,
        _around_t5, _extra_ids,
    ),
    "XLMRobertaTokenizer": Kind(
        {"type": "Unigram", "unk_id": 3}, _XLM_TOKENS, {"add_prefix_space": True}, _pieces, _around_xlmr
    ),
    "CamembertTokenizer": Kind(
        {"type": "Unigram", "unk_id": _unknown_row}, _XLM_TOKENS | {"mask_token": AddedToken("<mask>", lstrip=True, special=True)},
        {"add_prefix_space": True}, _pieces, _around_xlmr,
        lambda s, tokens: ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED") if tokens is None else tokens,
    ),
    "AlbertTokenizer": Kind(
        {"type": "Unigram", "unk_id": 1},
        _XLM_TOKENS | {"bos_token": "[CLS]", "eos_token": "[SEP]", "sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
        {"do_lower_case": True, "keep_accents": False, "add_prefix_space": True, "trim_offsets": True}, _albert, _around_albert,
        is_file_first=True,
    ),
    "LlamaTokenizer": Kind(
        _BPE | {"fuse_unk": True, "byte_fallback": True}, {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
        {"legacy": False, "add_prefix_space": None}, _llama,
    ),
    "GemmaTokenizer": Kind(
        _BPE | {"fuse_unk": True, "byte_fallback": True, "unk_token": _unknown_of},
        {"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"}, {}, _gemma,
    ),
}  # fmt: skip
