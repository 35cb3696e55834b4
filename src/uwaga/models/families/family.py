"""A family of models: how the keys of config.json and the names of weights in a directory of transformers become a `Transformer`, and back.

The tables in this folder are data, and at most one function each way. Adding a model type is adding one table, as FAMILIES of its module.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from torch import Generator, Tensor, cat

from uwaga._base import options
from uwaga._base.errors import CheckpointError, OwnCodeError
from uwaga._base.options import unknown_key
from uwaga._base.safetensors_files import Stored
from uwaga._base.terminal import printable
from uwaga.models.checkpoints import config_json
from uwaga.models.checkpoints.config_json import Key
from uwaga.models.checkpoints.tables import Table, WeightMapping
from uwaga.models.configuration import OUTPUTS, Config

_T = TypeVar("_T")
_FIELDS = frozenset(option.name for option in fields(Config))
_RULES = options.field_rules(Config)
# Our modules -> the output that they are of.
_HEADS = {"pooler": "pooled", "lm_head": "logits", "sequence": "sequence", "tokens": "tokens"}
# Keys that are second names of others in some families of transformers (its `attribute_map`); there the second name wins.
_SECOND_NAMES = config_json.keys(
    head_dim=None, hidden_size=None, max_position_embeddings=None, num_attention_heads=None, num_hidden_layers=None
)
_MARKS = "^=~"
_SAME: Any = (None, lambda x: x, lambda x: x)
_EMBEDDINGS = ("decoder_embeddings.token_embedding.weight", "embeddings.token_embedding.weight")


# (name, matrix, generator)
Draw = Callable[[str, Tensor, Generator], object]


class File(NamedTuple):
    """What a directory says of its model; of a model that is made without one, nothing."""

    config: Mapping[str, Any] = {}  # of config.json
    where: str = "config"  # its path, for messages
    names: Set[str] | None = None  # of the weights, without prefix; None: there are no files

    def has(self, name: str) -> bool:
        """Return whether there is a weight of this name."""
        return self.names is not None and name in self.names


@dataclass(frozen=True, kw_only=True)
class Family:
    """The table of one model type.

    Attributes:
        keys: of config.json, with our settings. A setting that is no field of `Config` is for `settle`.
        fixed: settings that all its models have.
        extra: settings in addition to those of `keys` that a Python caller or a training may give.
        outputs: of a model that is made without a file.
        only: the supported values of further keys, in addition to `config_json.ONLY`; another would change what is computed.
        names: their modules -> ours, or a function of the config that returns these. `{n}` counts layers, `{stack}` is "encoder" or "decoder".
            "attention.(query|key|value)": three of ours in one of theirs. After ours, "^": the weight is transposed, "=": layers share it,
            "~": it has a dimension of 1 before its own. Between two of ours, "/": whichever the model has. What it lacks is left out.
        prefix: of the names of a model with a head; old_prefixes: of other programs' files, read in its place.
        logits: their output projection, and the name of its bias where the projection is tied to the embedding.
        architectures: the names of classes, with their outputs; first the one without a head.
        tied: further second names of weights -> the first.
        any_class: whether a file of another class is read, if its weights are those of the table.
        unread: `Table.unread`; `{n}` counts layers. unread_of: more of it, by architecture.
        legacy: the end of a name in old files -> its current end.
        dropped: keys of a file that are not written again.
        settle: (settings, file) -> None: completes the settings where they are more than another name of a key.
        tokenizer: the class that transformers has for the family, whose settings a directory may have; None: transformers has no class of its own for the family.
        forces_tokenizer: it counts, whatever tokenizer_config.json says.
        write: config -> keys of config.json in addition to those of `keys`.
        initial: config -> what draws the initial numbers of one matrix, by its name; None: of families that are not trained.
    """

    keys: dict[str, Key]
    fixed: dict[str, Any] = field(default_factory=dict)
    extra: Collection[str] = ()
    outputs: tuple[str, ...] = ()
    only: dict[str, tuple[object, ...]] = field(default_factory=dict)
    names: Mapping[str, str] | Callable[[Config], Mapping[str, str]]
    prefix: str = ""
    old_prefixes: tuple[str, ...] = ()
    logits: tuple[str, str] = ("", "")
    architectures: Mapping[str, tuple[str, ...]]
    any_class: bool = False
    tied: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    unread_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    legacy: Mapping[str, str] = field(default_factory=dict)
    dropped: Collection[str] = ()
    settle: Callable[[dict[str, Any], File], None] = lambda settings, file: None
    tokenizer: str | None = None
    forces_tokenizer: bool = False
    write: Callable[[Config], Mapping[str, object]] = lambda config: {}
    initial: Callable[[Config], Draw] | None = None

    @property
    def settings(self) -> frozenset[str]:
        """Those that a Python caller or a training may give."""
        return _FIELDS & {key.ours for key in self.keys.values()} | {*self.extra, "outputs"}

    def read(self, model_type: str, file: File, overrides: Mapping[str, Any]) -> Config:
        """Return the configuration of a directory, or with an empty file that of a model with these settings.

        Raises:
            CheckpointError: of a file.
            ValueError: of settings; one that this model type does not have.
        """
        for name in overrides:
            if name not in self.settings:
                raise ValueError(
                    f"config: {model_type}: {unknown_key(name, self.settings).replace('key', 'setting', 1)}"
                )
        read = {key.ours: _value(file, name, key) for name, key in self.keys.items()}
        self._check_others(file)
        file = file._replace(names=None if file.names is None else frozenset(map(self.bare, file.names)))
        for name, value in overrides.items():  # before `settle` computes with them
            rule = self.keys[name].kind if name in self.keys else None
            if name in _RULES:
                options.read(rule or _RULES[name], value, path=f"Config: {name}")
        settings = {"model_type": model_type, **self.fixed, **read, **overrides, "kept": dict(file.config)}
        if "outputs" not in overrides:
            settings["outputs"] = self.outputs if file.names is None else self._stored_outputs(file)
        self.settle(settings, file)
        try:
            return Config(**settings)
        except ValueError as error:
            if file.names is None:
                raise
            raise CheckpointError(f"{file.where}: {error}") from error

    @property
    def second_names(self) -> dict[str, str]:
        """Second names of the keys -> the first."""
        first = {key.ours: name for name, key in self.keys.items()}
        others = {second: key.ours for second, key in _SECOND_NAMES.items() if second not in self.keys}
        return {second: first[ours] for second, ours in others.items() if ours in first}

    def _check_others(self, file: File) -> None:
        """Warn of unknown keys. Raises CheckpointError if a key that is not computed has a value that is not supported."""
        config, only = file.config, config_json.ONLY | self.only
        for name, values in only.items():
            if name in config and config[name] not in values:
                # Of code in the model's directory: transformers would compute something else.
                refused = OwnCodeError if name in config_json.OWN_CODE else CheckpointError
                supported = " or ".join(map(repr, values))
                raise refused(f"{file.where}: {name} is {printable(repr(config[name]))}; only {supported} is supported")
        seconds = self.second_names
        for second, first in seconds.items():
            expected = config.get(first, self.keys[first].default)
            if config.get(second, expected) != expected:
                rule = f"{second} is another name of {first}, which is {expected!r}"
                raise CheckpointError(f"{file.where}: {rule}, not {printable(repr(config[second]))}: remove one")
        read = self.keys.keys() | only.keys() | seconds.keys() | config_json.HARMLESS
        if file.names is not None and (unknown := config.keys() - read):
            names = ", ".join(sorted(map(printable, unknown)))
            warnings.warn(f"{file.where} has unknown keys, which have no effect: {names}")

    def written(self, config: Config) -> dict[str, object]:
        """Return config.json as transformers reads it: that of the file, with the settings that have keys.

        Raises CheckpointError if transformers has no such model, or a setting without a key is not that of the file.
        """
        kept = {name: value for name, value in config.kept.items() if name not in ("torch_dtype", *self.dropped)}
        keys = {name: _written(config, key) for name, key in self.keys.items() if key.ours in _FIELDS}
        more = {"model_type": config.model_type, **self.write(config)}
        if "architectures" not in more:
            more["architectures"] = [self.architecture(config.outputs)]
        result = kept | keys | more
        again = self.read(config.model_type, File(result, "save: config.json"), {})
        for name in sorted(_FIELDS & set(self.extra)):
            if getattr(again, name) != (value := getattr(config, name)):
                raise CheckpointError(f"save: no key of a {config.model_type} model says that {name} is {value}")
        return result

    def architecture(self, outputs: Collection[str]) -> str:
        """Return the class of transformers with these outputs, with or without a pooler. Raises CheckpointError if there is no such class."""
        for name, has in self.architectures.items():
            if {*outputs, "pooled"} == {*has, "pooled"}:
                return name
        raise CheckpointError(
            f"transformers has no {next(iter(self.architectures))} with the outputs {', '.join(outputs)}"
        )

    def _stored_outputs(self, file: File) -> tuple[str, ...]:
        """Return the outputs whose weights are in the file."""
        if not self.any_class:
            names = file.config.get("architectures")
            if names and names not in ([name] for name in self.architectures):
                supported = ", ".join(self.architectures)
                raise CheckpointError(
                    f"{file.where}: architectures is {printable(repr(names))}; supported: {supported}"
                )
        of_class = self.architectures.get(_class_of(file.config), ())
        found = (
            ours
            for theirs, text in self._named(None).items()
            if any(file.has(f"{theirs}{part}") for part in ("", ".weight", ".bias"))
            for ours in text.split("/")
        )
        stored = {_HEADS[part] for ours in found if (part := _head(ours))}
        if self.logits[0] and file.has(f"{self.logits[0]}.weight"):
            stored.add("logits")
        # `classifier` is a name for sequences and for tokens, and the class says which.
        stored -= {"sequence", "tokens"} - set(of_class)
        return tuple(name for name in OUTPUTS if name in stored)

    def _named(self, config: Config | None) -> Mapping[str, str]:
        if isinstance(self.names, Mapping):
            return self.names
        return self.names(self.read("", File(), {}) if config is None else config)

    def of_body(self, stored: Mapping[str, Stored]) -> dict[str, Stored]:
        """Return the weights of a file that are of no head."""
        named = self._named(None).items()
        parts = {theirs.partition(".")[0] for theirs, ours in named if _head(ours) in ("", "pooler")}
        return {name: x for name, x in stored.items() if self.bare(name).partition(".")[0] in parts}

    def table(self, config: Config, ours: Mapping[str, Tensor]) -> Table:
        """Return the table of a model with this configuration, whose state dict is `ours`."""
        left, rows = dict(ours), list[WeightMapping]()
        stack = "decoder" if config.is_causal else "encoder"
        layers = range(max(config.num_layers, config.num_decoder_layers))
        for theirs, text in self._named(config).items():
            for n in layers if "{n}" in theirs else (0,):
                there, here = (x.replace("{n}", str(n)).replace("{stack}", stack) for x in (theirs, text))
                rows += [row for module in here.split("/") for row in _rows(there, module, left)]
        projection, bias = self.logits
        table = next(name for name in _EMBEDDINGS if name in ours)
        words = next(row.theirs for row in rows if row.ours[0] == table)
        tied = dict(self.tied)
        if projection and config.tie_word_embeddings and "logits" in config.outputs:
            tied |= {f"{projection}.weight": words, f"{projection}.bias": bias}
        unread = {**self.unread, **self.unread_of.get(_class_of(config.kept), {})}
        if not config.tie_word_embeddings and bias and bias != f"{projection}.bias":
            unread[bias] = "transformers adds the decoder's own bias where the decoder is not tied"
            bias = f"{projection}.bias"
        rows += _rows(f"{projection}.weight", "lm_head.decoder.weight", left) + _rows(bias, "lm_head.bias", left)
        assert not left, f"the table of {config.model_type} lacks {', '.join(left)}"
        stored = {row.theirs for row in rows}
        is_head = {row.theirs: _head(row.ours[0]) not in ("", "pooler") for row in rows}
        return Table(
            body=[row for row in rows if not is_head[row.theirs]],
            heads=[row for row in rows if is_head[row.theirs]],
            prefix=self.prefix if set(config.outputs) - {"pooled"} else "",
            tied={second: first for second, first in tied.items() if first in stored and second not in stored},
            unread={name.replace("{n}", str(n)): why for name, why in unread.items() for n in layers},
            bare=self.bare,
        )

    def bare(self, name: str) -> str:
        """Return a name of a file as the names of the table are: without prefix, with the current ending."""
        for prefix in (self.prefix, *self.old_prefixes):
            name = name.removeprefix(prefix)
        old = next((old for old in self.legacy if name.endswith(old)), "")
        return name.removesuffix(old) + self.legacy[old] if old else name


def _class_of(config: Mapping[str, Any]) -> str:
    """Return the first class that config.json names, or ""."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _value(file: File, name: str, key: Key) -> object:
    """Return the value of a key of a file, as we have it. Raises CheckpointError."""
    in_file, read, _ = _in_files(key)
    rule = in_file or key.kind or _RULES[key.ours]
    rule = rule | None if key.default is None else rule
    return read(config_json.setting(file.config, file.where, name, rule, key.default))


def _written(config: Config, key: Key) -> object:
    ours, (_, _, write) = getattr(config, key.ours), _in_files(key)
    return ours if ours is None else write(ours)


def _in_files(key: Key) -> Any:
    return config_json.IN_FILES.get(key.ours, _SAME) if key.kind is None else _SAME


def _head(ours: str) -> str:
    """Return the first part of our name, where it is one of a head."""
    part = ours.rstrip(_MARKS).partition(".")[0]
    return part if part in _HEADS else ""


def _rows(theirs: str, text: str, left: dict[str, Tensor]) -> list[WeightMapping]:
    """Return the rows of one module, whose weights of ours are taken out of `left`."""
    start, _, joined_names = text.rstrip(_MARKS).partition("(")
    inside, _, end = joined_names.partition(")")
    names, rows = [start + name + end for name in inside.split("|")], []
    for part in ("", ".weight", ".bias"):
        mine = [name + part for name in names]
        if all(name in left for name in mine):
            sizes = [left.pop(name).shape[0] for name in dict.fromkeys(mine)]
            rows.append(WeightMapping(theirs + part, tuple(mine), *_layout(text[-1], sizes, part)))
    return rows


def _layout(mark: str, sizes: list[int], part: str) -> tuple[Callable[..., Any], ...]:
    """Return how a stored weight is split into ours, with these numbers of rows, and joined again; (): it is one of ours."""
    if mark == "=":
        return lambda x: (x,) * len(sizes), lambda parts: parts[0]
    if mark == "~":
        return lambda x: (x[0],), lambda parts: parts[0][None]
    if mark == "^" and part == ".weight":  # as in GPT-2, (in, out)
        return lambda x: [piece.T for piece in x.split(sizes, 1)], lambda pieces: cat([piece.T for piece in pieces], 1)
    return (lambda x: x.split(sizes), lambda parts: cat(list(parts))) if len(sizes) > 1 else ()


def layers(theirs: str, ours: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return the rows of a layer: their names after `theirs`, ours after `ours`.

    >>> layers("h.{n}", "decoder.layers.{n}", {"ln_1": "attention_norm"})
    {'h.{n}.ln_1': 'decoder.layers.{n}.attention_norm'}
    """
    return {f"{theirs}.{there}": f"{ours}.{here}" for there, here in names.items()}


def post_norm_layers(theirs: str, names: str, ours: str = "encoder.layers.{n}", *, mark: str = "") -> dict[str, str]:
    """Return the rows of a post-norm encoder layer.

    names: of the maps to queries, keys, values and the output, of their norm, of the two maps of the feed-forward layer, and of its norm.
    mark: after our names.

    >>> post_norm_layers("h.{n}", "q k v o ln_1 up down ln_2")["h.{n}.ln_1"]
    'encoder.layers.{n}.attention_norm'
    """
    here = [f"attention.{part}" for part in ("query", "key", "value", "output")]
    here += ["attention_norm", "feed_forward.up", "feed_forward.down", "feed_forward_norm"]
    return layers(theirs, ours, {there: f"{part}{mark}" for there, part in zip(names.split(), here, strict=True)})


def without(table: Mapping[str, _T], *names: str) -> dict[str, _T]:
    """Return a table without some of its rows."""
    return {name: row for name, row in table.items() if name not in names}


def classes(stem: str, heads: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the names of classes: the stem with each ending.

    >>> classes("Llama", {"Model": (), "ForCausalLM": ("logits",)})
    {'LlamaModel': (), 'LlamaForCausalLM': ('logits',)}
    """
    return {stem + ending: outputs for ending, outputs in heads.items()}
