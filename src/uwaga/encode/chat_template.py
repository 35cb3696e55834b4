"""The chat template of a directory: the one that AutoTokenizer takes, and the messages that sentence-transformers makes of texts.

A Transformer with the modality "message" renders messages and tokenises the result without special tokens. A text that is truncated still
ends with what the template puts after a text.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.encode.templates import Template, TemplateFault
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
# Arguments of apply_chat_template that are no plain variables of a template.
_REFUSED = (
    "chat_template", "common_kwargs", "continue_final_message", "conversation", "conversations", "documents", "max_length", "messages",
    "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens", "tokenize", "tokenizer_kwargs",
    "tools", "truncation",
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
        self.path, self._variables, self.instead = path, variables, instead
        self._is_structured, self._restores_end = is_structured, restores_end
        self._template = Template(source)
        self._ends: dict[tuple[int, str], list[int]] = {}

    def text(self, *texts: str, prompt: str) -> str:
        """Return what the model reads of a text, or of a query and a document: `texts` of one."""
        return self.texts([texts], prompt=prompt)[0]

    def texts(self, rows: Sequence[Sequence[str]], *, prompt: str, **more: str) -> list[str]:
        """Return what the model reads of each text, or of each query and document. Raises CheckpointError.

        prompt: the message of the role "system"; empty for no such message. more: further variables of the template.
        """
        conversations = []
        for texts in rows:
            roles = _ROLES if len(texts) == 2 else ("user",)
            by_role = [("system", prompt)] * bool(prompt) + list(zip(roles, texts, strict=True))
            conversations.append([
                {"role": role, "content": [{"type": "text", "text": text}] if self._is_structured else text}
                for role, text in by_role
            ])  # fmt: skip
        try:
            return self._template.render({**more, **self._variables}, conversations)
        except TemplateFault as error:
            raise CheckpointError(f"{self.path}: its chat template {error}") from error

    def reads_task(self) -> bool:
        """Whether it reads the variable "task", which sentence-transformers' encode_query and encode_document set."""
        settings: list[dict[str, str]] = [{}, *({"task": task} for task in _ROLES)]
        return len({self.texts([("a",)], prompt="", **more)[0] for more in settings}) > 1

    def missing_roles(self) -> list[str]:
        """Return the roles of a pair whose texts do not reach the result."""
        alone, *others = self.texts(_PAIRS, prompt="")
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
                backend.encode(text, add_special_tokens=False).ids
                for text in self.texts([[filler] * count for filler in _FILLERS], prompt=prompt)
            )
            most = min(len(first), len(second))
            equal = next((index for index in range(most) if first[-1 - index] != second[-1 - index]), 0)
            self._ends = {key: first[len(first) - equal :]}  # of the last prompt only, since a caller may have many
        return self._ends[key]


def for_texts(root: Path, transformer: TransformerSettings, *, is_listed: bool) -> ChatTemplate | None:
    """Read the chat template of a model for single texts. Raises CheckpointError."""
    chat = read(root, transformer, is_listed=is_listed)
    if chat is not None and chat.reads_task():
        raise CheckpointError(
            f"{chat.path}: its chat template reads task, which TextEncoder does not set; set it in "
            f"processing_kwargs.chat_template of {transformer.path.name}"
        )
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
    family = untrusted.read_json(folder / "config.json", missing_ok=True).get("model_type")
    kind = modalities.get("message", {}).get("format", "auto")
    if kind == "auto":
        looks = not found or any(part in found for part in _STRUCTURED)
        kind = "structured" if looks and family not in _FLAT_FAMILIES else "flat"
    # transformers gives a template these variables too.
    variables = {
        "tools": None, "documents": None, "add_generation_prompt": False, "common_kwargs": {}, **_tokens(folder, found), **options,
    }  # fmt: skip
    return ChatTemplate(found, file, variables, is_structured=kind == "structured", restores_end=bool(restores_end))


def _find(root: Path, folder: Path) -> tuple[Path, str | None]:
    """Return file and text of the one template, as AutoTokenizer does: the file replaces the setting of the tokenizer."""
    path = folder / FILE
    try:
        content = untrusted.read_file_if_exists(path, _TEMPLATE_BYTES)
        found: Any = None if content is None else content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if found is None:
        path = folder / "tokenizer_config.json"
        found = untrusted.read_json(path, missing_ok=True).get("chat_template")
    if not isinstance(found, str | None) or any((place / FOLDER).is_dir() for place in (root, folder)):
        raise CheckpointError(f"{folder} has several chat templates; only one is supported, in {FILE}")
    if found is not None and len(found) > _TEMPLATE_BYTES:
        raise CheckpointError(f"{path}: its chat template is longer than {_TEMPLATE_BYTES} characters")
    return path, found


def _tokens(folder: Path, source: str) -> dict[str, Any]:
    """Return special tokens by their names in tokenizer_config.json and special_tokens_map.json.

    Other tokens that the template names are those of the tokenizer's class.
    """
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
        if special is None:
            raise CheckpointError(
                f"{path}: its chat template reads {others[0]}, which depends on the tokenizer's class; add the key here, or null"
            )
        result |= {key: special[key] for key in others if key in special}
    return result
