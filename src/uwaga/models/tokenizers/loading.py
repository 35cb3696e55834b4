"""A model's tokenizer.json, checked against the vocabulary of its config.json."""

import json
import os
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Chain

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import directories, sentence_files
from uwaga.models.tokenizers import auto_tokenizer
from uwaga.models.tokenizers.tokenizer import FILE, Tokenizer, content_of, library_errors, read, state

TARGET_FILE = f"target_{FILE}"


def load_tokenizer(folder: Path, *, lowercase: bool = False, allows_types: bool = False) -> Tokenizer:
    """Load the tokenizer in the directory of a model. allows_types: special tokens may have other token types than 0.

    Raises CheckpointError, also where it does not match config.json.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        raise CheckpointError(
            f"there is no {path}; transformers writes one: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    backend, defaults = auto_tokenizer.load(folder)
    if lowercase:
        first = backend.normalizer
        described = state(first)
        # As sentence-transformers does, which adds no second Lowercase.
        if "Lowercase" not in [step.get("type") for step in described.get("normalizers", [described])]:
            backend.normalizer = Lowercase() if first is None else Chain([Lowercase(), first])
    with library_errors(path):
        result = Tokenizer(backend, path, allows_types=allows_types, defaults=defaults)
    # The special tokens of config.json are those of the decoder where it has a tokenizer of its own.
    _check_fit(result, "vocab_size", has_ids=not os.path.lexists(folder / TARGET_FILE))
    return result


def load_target_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the separate tokenizer of a decoder, as `uwaga.train` saves it; None where encoder and decoder share one.

    Raises CheckpointError.
    """
    path = folder / TARGET_FILE
    if not os.path.lexists(path):
        return None
    with library_errors(path):
        result = Tokenizer(read(path), path)
    _check_fit(result, "decoder_vocab_size", "vocab_size", has_ids=True)
    return result


def tokenizer(model: torch.nn.Module | str | os.PathLike[str], *, decoder: bool = False) -> Backend:
    """Load the tokenizer of a model as a tokenizers.Tokenizer: `.encode(text).ids` are the ids that the model reads.

    Args:
        model: a model that `uwaga.models.load` returned, a directory, the name of a bundled model, or an id on the Hub.
        decoder: load the tokenizer of the decoder. It differs from the other one only if the model has two vocabularies.

    Raises:
        CheckpointError: there is no tokenizer, or it does not match the model.
        ValueError: the model was not loaded from files.

    >>> speller = tokenizer("speller")
    >>> speller.encode("cat").tokens
    ['c', 'a', 't', '</s>']
    >>> tokenizer("speller", decoder=True).encode("K AE1 T").ids == speller.encode("cat").ids
    False
    """
    return of_model(model, decoder=decoder).backend


def of_model(model: torch.nn.Module | str | os.PathLike[str], *, decoder: bool = False) -> Tokenizer:
    """Load what `tokenizer` loads, with the special tokens of the model. Raises its errors."""
    if isinstance(model, torch.nn.Module):
        folder = getattr(model, "directory", None)
        if not isinstance(folder, Path):
            raise ValueError(
                f"tokenizer: this {type(model).__name__} was not read by uwaga.models.load; give the directory of its tokenizer.json"
            )
    else:
        folder = directories.transformer(directories.find(model, None))
    if decoder and (target := load_target_tokenizer(folder)) is not None:
        return target
    return load_tokenizer(folder, lowercase=sentence_files.lowercases(folder))


def _check_fit(tokenizer: Tokenizer, *sizes: str, has_ids: bool) -> None:
    """Raise CheckpointError if the vocabulary is larger than the model's, or special tokens of a decoder have other ids than in config.json.

    A decoder begins and ends by these ids. Other models read the ids that the tokenizer gives, and published directories contradict
    themselves: multilingual-e5-small has two padding tokens.

    sizes: keys of config.json for the size of the vocabulary, the first one present counts. has_ids: whether the ids of
    special tokens in config.json belong to this tokenizer.
    """
    backend, path, last = tokenizer.backend, tokenizer.path, tokenizer.vocab_size - 1
    config = untrusted.read_json(path.parent / "config.json")
    settings = path.with_stem(f"{path.stem}_config")
    special = untrusted.read_json(settings, missing_ok=True)
    key = next((key for key in sizes if config.get(key) is not None), None)
    size = None if key is None else config[key]
    rows = size if isinstance(size, int) else sys.maxsize
    for name in auto_tokenizer.SPECIAL:
        if (token := content_of(special.get(name))) is None:
            continue
        result, expected = backend.token_to_id(token), config.get(f"{name}_id")
        if result is None or result >= rows:  # transformers adds it after the others
            raise _misfit(path, f"the {name} {printable(token)!r} of {settings.name} is not in its vocabulary")
        if has_ids and config.get("is_encoder_decoder") and isinstance(expected, int) and result != expected:
            raise _misfit(path, f"its {name} {printable(token)!r} is token {result}, not {expected}")
    if last >= rows:
        # As the files write it; id_to_token gives it as the normalizer leaves it.
        token = next(name for name, number in backend.get_vocab().items() if number == last)
        raise _misfit(_origin(path, token), f"the token {printable(token)!r} has the id {last}, but {key} is {size}")


def _misfit(path: Path, rule: str) -> CheckpointError:
    return CheckpointError(f"{path} does not match config.json: {rule}")


def _origin(path: Path, token: str) -> Path:
    """Return the file next to a tokenizer.json that adds a token, or the tokenizer.json."""
    for name in (auto_tokenizer.ADDED, auto_tokenizer.MAP, auto_tokenizer.SETTINGS):
        other = path.with_name(name)
        if (named := untrusted.read_json(other, missing_ok=True)) and token in json.dumps(named, ensure_ascii=False):
            return other
    return path
