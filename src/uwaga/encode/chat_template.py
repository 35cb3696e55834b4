"""The chat template of a directory: the one that AutoTokenizer takes, and the messages that sentence-transformers makes of texts.

A Transformer with the modality "message" renders messages and tokenises the result without special tokens. A text that is truncated still
ends with what the template puts after a text.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.options import ListOf, Text
from uwaga._base.terminal import printable
from uwaga.models.checkpoints.config_json import setting
from uwaga.models.checkpoints.sentence_files import TransformerSettings
from uwaga.models.tokenizers import auto_tokenizer
from uwaga.models.tokenizers.tokenizer import content_of

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
_TEMPLATE_BYTES = 2**16
# Families whose templates take a string as content, whatever they look like.
_FLAT_FAMILIES = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")
# Marks of a template that takes a list of typed parts as content.
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
# Arguments of apply_chat_template that are not variables and are not computed.
_REFUSED = (
    "common_kwargs", "continue_final_message", "conversation", "conversations", "max_length", "messages", "padding",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "truncation",
)  # fmt: skip
# Only what the template puts after them is equal in the renderings of these texts.
_FILLERS = ("0", "1 2 3 4")
# A pair, and pairs with another query or another document.
_PAIRS = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))
_ROLES = ("query", "document")


class ChatTemplate:
    """Texts and pairs as the messages of a template.

    Attributes:
        path: the file, for messages.
        instead: why a template that is not the directory's own is used; empty if it is the directory's own.
        reads_task: whether it reads the variable "task", which sentence-transformers' encode_query and encode_document set.
    """

    def __init__(
        self,
        source: str,
        path: Path,
        variables: Mapping[str, Any],
        *,
        is_structured: bool = False,
        restores_end: bool = True,
        instead: str = "",
    ) -> None:
        from uwaga.encode.template_language import Template  # jinja2 is imported if there is a template

        self.path, self._variables, self.instead = path, variables, instead
        self._is_structured, self._restores_end = is_structured, restores_end
        with self._faults():
            self._template = Template(source)
        self.reads_task = self._template.reads("task") and "task" not in variables
        self._ends: dict[tuple[int, str], list[int]] = {}

    def text(self, *texts: str, prompt: str) -> str:
        """Return what the model reads of a text, or of a query and a document. Raises CheckpointError.

        prompt: the message of the role "system"; empty for no such message.
        """
        roles = _ROLES if len(texts) == 2 else ("user",)
        by_role = [("system", prompt)] * bool(prompt) + list(zip(roles, texts, strict=True))
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if self._is_structured else text}
            for role, text in by_role
        ]
        with self._faults():
            return self._template.render({**self._variables, "messages": messages})

    @contextmanager
    def _faults(self) -> Iterator[None]:
        from uwaga.encode.template_language import TemplateFault

        try:
            yield
        except TemplateFault as error:
            raise CheckpointError(f"{self.path}: its chat template {error}") from error

    def missing_roles(self) -> list[str]:
        """Return the roles of a pair whose texts do not reach the result."""
        alone, *others = (self.text(*pair, prompt="") for pair in _PAIRS)
        return [role for role, other in zip(_ROLES, others, strict=True) if other == alone]

    def reads_prompt(self) -> bool:
        return len({self.text(*_PAIRS[0], prompt=prompt) for prompt in ("alpha", "bravo")}) == 2

    def end(self, backend: Backend, count: int, prompt: str) -> list[int]:
        """Return the last tokens of any `count` texts, which also end a truncated text."""
        key = (count, prompt)
        if not self._restores_end:
            return []
        if key not in self._ends:
            first, second = (
                backend.encode(self.text(*[filler] * count, prompt=prompt), add_special_tokens=False).ids
                for filler in _FILLERS
            )
            most = min(len(first), len(second))
            equal = next((index for index in range(most) if first[-1 - index] != second[-1 - index]), 0)
            self._ends = {key: first[len(first) - equal :]}  # of the last prompt only, since a caller may have many
        return self._ends[key]


def for_texts(root: Path, transformer: TransformerSettings, *, is_listed: bool) -> ChatTemplate | None:
    """Read the chat template of a model for single texts. Raises CheckpointError."""
    chat = read(root, transformer, is_listed=is_listed)
    if chat is not None and chat.reads_task:
        raise CheckpointError(
            f"{chat.path}: its chat template reads task, which TextEncoder does not set; set it in "
            f"processing_kwargs.chat_template of {transformer.path.name}"
        )
    if chat is not None:
        chat.text("a", prompt="")  # raises now, instead of at the first text
    return chat


def read(root: Path, transformer: TransformerSettings, *, is_listed: bool) -> ChatTemplate | None:
    """Read the chat template that sentence-transformers renders; None if it renders none.

    Args:
        root: the directory.
        transformer: the settings of its module Transformer.
        is_listed: whether modules.json names that module. Otherwise, the modality is "message" if there is a template.

    Raises:
        CheckpointError: a file is wrong, or the template is not computed.
    """
    path, settings = transformer.path, transformer.values if is_listed else {}
    folder, modalities = path.parent, settings.get("modality_config") or {}
    if is_listed and "message" not in modalities:
        return None
    file, found = _find(root, folder)
    if found is None:
        if not is_listed:
            return None
        raise CheckpointError(f"{path}: modality_config.message needs a chat template, and {folder} has no {FILE}")
    described = folder / "tokenizer_config.json"
    if (processor := untrusted.read_json(described, missing_ok=True).get("processor_class")) is not None:
        raise CheckpointError(
            f"{described}: processor_class is {printable(repr(processor))}, which takes its chat template from other files; only a "
            "tokenizer, without this key, is supported"
        )
    calls = settings.get("processing_kwargs") or {}
    within = "processing_kwargs.chat_template"
    options = dict(setting({within: calls.get("chat_template")}, path, within, dict[str, Any] | None, None) or {})
    restores_end = options.pop("restore_suffix", True)
    if wrong := sorted(options.keys() & set(_REFUSED)):
        raise CheckpointError(f"{path}: {within}.{wrong[0]} is not supported; remove it")
    rules = {
        "tools": ListOf[dict[str, Any]] | None,
        "documents": ListOf[dict[str, Any]] | None,
        "chat_template": Text | None,
    }
    for key, rule in rules.items():
        setting({f"{within}.{key}": options.get(key)}, path, f"{within}.{key}", rule, None)
    source, file = _selected(found, file, options, path)
    family = untrusted.read_json(folder / "config.json", missing_ok=True).get("model_type")
    kind = modalities.get("message", {}).get("format", "auto")
    if kind == "auto":
        looks = not isinstance(found, str) or not found or any(part in found for part in _STRUCTURED)
        kind = "structured" if looks and family not in _FLAT_FAMILIES else "flat"
    # transformers gives a template these variables too.
    sizes = ("max_length", "padding", "return_tensors", "truncation")
    common = {key: value for key, value in (calls.get("common") or {}).items() if key not in sizes}
    variables = {
        "tools": None, "documents": None, "add_generation_prompt": False, "common_kwargs": common, **_tokens(folder, source), **options,
    }  # fmt: skip
    return ChatTemplate(source, file, variables, is_structured=kind == "structured", restores_end=bool(restores_end))


def _find(root: Path, folder: Path) -> tuple[Path, str | dict[str, str] | None]:
    """Return file or folder and text of a template, or texts by name, as AutoTokenizer does.

    Files replace the settings of the tokenizer.
    """
    path = folder / FILE
    files = {} if (text := _text(path)) is None else {"default": text}
    for template_file in sorted((root / FOLDER).glob("*.jinja")):
        if (text := _text(folder / FOLDER / template_file.name)) is not None:
            files[template_file.name.removesuffix(".jinja")] = text
    if files:
        return (path, files["default"]) if files.keys() == {"default"} else (folder, files)
    path = folder / "tokenizer_config.json"
    found = untrusted.read_json(path, missing_ok=True).get("chat_template")
    if isinstance(found, list) and all(isinstance(entry, dict) for entry in found):
        found = {str(entry.get("name")): entry.get("template") for entry in found}
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return path, found
    if not isinstance(found, str | None):
        raise CheckpointError(f"{path}: chat_template must be a string or a list of objects with a name and a template")
    return path, found


def _selected(found: str | dict[str, str], file: Path, options: dict[str, Any], path: Path) -> tuple[str, Path]:
    """Return the template that apply_chat_template takes, and its file."""
    name: str | None = options.pop("chat_template", None)
    if name is not None and (isinstance(found, str) or name not in found):
        found, file = name, path
    elif not isinstance(found, str):
        name = name or ("tool_use" if options.get("tools") is not None and "tool_use" in found else "default")
        if name not in found:
            raise CheckpointError(
                f"{file} has chat templates with the names {', '.join(map(printable, sorted(found)))}, but no template default; "
                "choose one by processing_kwargs.chat_template.chat_template of sentence_bert_config.json"
            )
        found = found[name]
    if len(found) > _TEMPLATE_BYTES:
        raise CheckpointError(f"{file}: its chat template is longer than {_TEMPLATE_BYTES} characters")
    return found, file


def _text(path: Path) -> str | None:
    try:
        content = untrusted.read_file_if_exists(path, _TEMPLATE_BYTES)
        return None if content is None else content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _tokens(folder: Path, source: str) -> dict[str, Any]:
    """Return special tokens by their names in tokenizer_config.json and special_tokens_map.json.

    Other tokens that the template names are those of the tokenizer's class.
    """
    from uwaga.encode.template_language import Unknown

    path = folder / "tokenizer_config.json"
    settings = untrusted.read_json(path, missing_ok=True)
    named = settings
    if "added_tokens_decoder" not in settings:
        named = settings | untrusted.read_json(folder / "special_tokens_map.json", missing_ok=True)
    extra = named.get("extra_special_tokens")
    tokens = {key: value for key, value in named.items() if key.endswith("_token")}
    tokens |= extra if isinstance(extra, dict) else {}
    result: dict[str, Any] = {key: text for key, token in tokens.items() if (text := content_of(token)) is not None}
    if others := [key for key in auto_tokenizer.SPECIAL if key in source and key not in tokens]:
        special = auto_tokenizer.special_tokens(folder)
        reason = f"{path} has no such key, so that it depends on the tokenizer's class; add it there, or null"
        for key in others:
            if special is None:
                result[key] = Unknown(reason, key)
            elif key in special:
                result[key] = special[key]
    return result
