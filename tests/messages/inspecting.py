"""Calls that watch, edit and study attention, and raise.

The file is not inspect.py, which record.py would import in place of Python's module. Letters: H heads, N tokens.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tiny_models
import torch
import transformers
from tiny_tokenizer import word_tokenizer
from tiny_transformer import made, ragged
from tiny_vision import INNER, write_photo, write_vision
from torch import Tensor, nn

import uwaga
from uwaga import AttentionMap, Causal, Edits, Links, Patch, Recording
from uwaga.inspect import (
    GradientMap,
    Part,
    PatchGrid,
    PatchingResult,
    WinogradPair,
    activation_patching,
    activations,
    cache,
    cache_edit,
    cache_study,
    coreference_heads,
    cross_gradient_rollout,
    editing,
    gradient_rollout,
    head_changes,
    head_labels,
    head_table,
    image_grids,
    logit_attribution,
    logit_lens,
    patch_grid,
    pictures,
    rollout,
    score_attribution,
)
from uwaga.inspect.cache import CacheLayer, running
from uwaga.inspect.cache.study import causal_layer
from uwaga.inspect.heads.norms import ScaledMap, value_norms
from uwaga.inspect.heads.scores import duplicate_token, induction
from uwaga.inspect.heads.table import HeadTable
from uwaga.inspect.recordings.recording import TokenStrings
from uwaga.models import generate
from uwaga.nn import MultiHeadAttention
from uwaga.nn.attention_id import AttentionId
from uwaga.plots import patching_effects

IDS = torch.tensor([[4, 5, 6, 7, 8, 4, 5], [9, 10, 11, 12, 13, 9, 10]])
LONG = torch.randint(3, 20, (1, 40), generator=torch.Generator().manual_seed(0))
TEXTS = [[4, 5, 6, 7], [8], [9, 10, 11]]
TYPES = torch.tensor([3, 5, 3, 3, 7, 5, 9, 3])
ENCODER, DECODER, CROSS = (AttentionId(kind, 0) for kind in ("encoder", "decoder", "cross"))
FIRST = ("decoder", 0, 0)
ENTRY = {"kind": "encoder", "layer": 0, "head": 0}
DESCRIBED = {"kind": "decoder", "layers": [0, 1], "heads": [0], "spans": None, "clean": 1.0, "corrupted": 0.0, "values": [[[0.5]], [[None]]]}  # fmt: skip
PAIR = WinogradPair("The cat left the box because it was {}.", ("hungry", "empty"), "it", ("cat", "box"))
GPT2 = made("gpt2")


def x(*shape: int) -> Tensor:
    return torch.zeros(shape)


def square(*batch: int, tokens: int = 8, **options: object) -> AttentionMap:
    return AttentionMap(*[x(*batch, 2, tokens, 4)] * 2, **{"mask": Causal()} | options)


def read(model: nn.Module, ids: Tensor | uwaga.Ragged = IDS) -> object:
    both = getattr(model.config, "has_both", False)
    with torch.no_grad():
        return model(ids, ids) if both else model(ids)


def watch(model: nn.Module = GPT2, ids: Tensor | uwaga.Ragged = IDS, **options: object) -> Recording:
    with uwaga.watch(model, **options) as recording:
        read(model, ids)
    return recording


def edit(model: nn.Module = GPT2, ids: Tensor | uwaga.Ragged = IDS, **changes: object) -> None:
    with uwaga.edit(model, **changes):
        read(model, ids)


def nothing(context: object) -> None:
    with context:  # type: ignore[attr-defined]
        pass


def opened(module: nn.Module | None = None, tokenizer: object = ()) -> object:
    return uwaga.models.open(
        module or tiny_models.theirs("gpt2"), tokenizer=word_tokenizer() if tokenizer == () else tokenizer
    )


def nomic() -> nn.Module:
    return tiny_models.make("nomic_bert", tiny_models.small("nomic_bert"), transformers.AutoModel)


def with_dropout() -> nn.Module:
    model = made("gpt2").train()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.dropout = 0.1
    return model


def nested() -> None:
    with uwaga.edit(GPT2, heads={FIRST: 0.5}):
        read(GPT2)
        nested()


def many_links(patch: object) -> None:
    patch.setattr(editing, "MANY_LINKS", 0)  # type: ignore[attr-defined]
    patch.setattr(editing, "MAX_MASK_BYTES", 49)  # type: ignore[attr-defined]
    edit(made("bert"), IDS[:, :5], scores={("encoder", 1, None): [Links(n, (n + 1) % 5) for n in range(5)]})


def packed() -> None:
    offsets, llama = torch.tensor([0, 3, 7], dtype=torch.int32), tiny_models.theirs("llama", "uwaga")
    with uwaga.edit(llama, scores={FIRST: Links(0, 0)}):
        llama(input_ids=IDS[:1], cu_seq_lens_q=offsets, cu_seq_lens_k=offsets)


def small(name: str, **options: object) -> nn.Module:
    """A model of transformers whose attention cannot be watched."""
    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 20,
        "num_hidden_layers": 3,
    }
    return getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes | options)).eval()


def recording(*asked: tuple[AttentionId, Tensor, Tensor, Tensor | None, dict], **options: object) -> Recording:
    """What attention was asked for, without a model: where, query, key, token ids and options."""
    result = Recording(**options)
    for where, query, key, ids, more in asked:
        given = dict.fromkeys(("mask", "bias", "scale", "softcap", "sinks")) | more
        result.record(where, query, key, given, ids)
        result.store(where, query, key, given)
    return result


def asked(
    where: AttentionId = ENCODER, queries: int = 4, keys: int = 4, ids: Tensor | None = None, **options: object
) -> tuple:
    return where, torch.ones(2, 2, queries, 8), torch.ones(2, 2, keys, 8), ids, options


def split_row() -> object:
    ids = torch.arange(12).reshape(2, 6)
    second = torch.tensor([1, 0, 1])
    key = torch.randn(2, 2, 6, 8)
    first = (DECODER, key[:, :, :4], key[:, :, :4], ids[:, :4], {"mask": Causal()})
    return recording(
        first, (DECODER, key[second][:, :, 4:5], key[second][:, :, :5], ids[second][:, 4:5], {"mask": Causal()})
    ).maps[DECODER]


def different_pasts() -> object:
    key = torch.randn(2, 2, 9, 8)
    of = [(AttentionId("decoder", n), key[:, :, s - 1 : s], key[:, :, start:s], None, {"mask": Causal()})
          for s in (8, 9) for n, start in ((0, s - 3), (1, 0))]  # fmt: skip
    return recording(*of).maps["decoder", 1]


def beams() -> Recording:
    with uwaga.watch(GPT2) as result:
        generate(GPT2, [[5, 6, 7]], max_new_tokens=4, num_beams=3)
    return result


def drafts(family: str) -> tuple[Recording, Tensor]:
    """What was recorded of a generation that looks its drafts up in the prompt, and the text."""
    model, prompt = tiny_models.theirs(family), tiny_models.tokens(1, 10).repeat(1, 2)
    with uwaga.watch(model) as result:
        text = model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)
    return result, text


def named(name: str) -> Recording:
    result = recording(asked())
    result.model = name
    return result


def long_description(folder: Path, patch: object) -> None:
    patch.setattr("uwaga._base.untrusted.JSON_BYTES", 100)  # type: ignore[attr-defined]
    recording(asked()).save(folder / "a")


def loaded(folder: Path) -> Recording:
    watch(values=True).save(folder / "a")
    return Recording.load(folder / "a")


def late() -> Recording:
    cache = GPT2.new_cache()
    with torch.no_grad():
        GPT2(IDS[:, :4], cache=cache)
        with uwaga.watch(GPT2, values=True) as result:
            GPT2(IDS[:, 4:], cache=cache)
    return result


def score(*where: object, of: nn.Module = GPT2, given: object = IDS, **options: object) -> object:
    with torch.no_grad():
        return score_attribution(of, given, *where, **options)


HEAD = Part("head", "decoder", 0, 0)


def back(part: Part = HEAD, side: str = "key", **options: object) -> object:
    return score(1, 0, 2, 1).back(part, side, **options)


def metric(output: object) -> Tensor:
    return output.logits[0, -1, 3] - output.logits[0, -1, 5]


@torch.no_grad()
def patched(
    clean: object = IDS[:1], metric: Callable = metric, of: nn.Module = GPT2, **options: object
) -> PatchingResult:
    return activation_patching(of, clean, IDS[1:], metric, kind="decoder", **options)


def ragged_metric(out: object) -> float:
    is_ragged = isinstance(out.last_hidden_state, uwaga.Ragged)
    return float(out.last_hidden_state.values.sum()) if is_ragged else 0.5


def forgets(model: nn.Module = GPT2, ids: object = LONG, budget: object = 4, **options: object) -> None:
    with cache_edit(model, cache.window, budget, **options):
        read(model, ids)


def forgets_much(patch: object) -> None:
    patch.setattr(running, "MAX_MASK_BYTES", 100)  # type: ignore[attr-defined]
    forgets(prompt=2)


def forgets_writing() -> None:
    model = tiny_models.theirs("gpt2")
    with cache_edit(model, cache.window, 4, prompt=2):
        model.generate(torch.tensor([[4, 5, 6, 7]]), max_new_tokens=3, do_sample=False)


def study(policies: object = (cache.window,), ids: object = LONG, **options: object) -> object:
    return cache_study(watch(ids=ids, values=True), policies, **{"budgets": [8]} | options)


def policy(of: Callable, budget: int = 8, head_numbers: list[int] | None = None) -> object:
    query = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0))
    return of(CacheLayer(AttentionMap(query, query, mask=Causal()), 10, head_numbers=head_numbers), budget)


def gradient_map(queries: int = 7, keys: int = 7) -> GradientMap:
    query, key = x(2, 4, queries, 5), x(2, 4, keys, 5)
    return GradientMap(AttentionMap(query, key), key, query)


def grid(**options: object) -> PatchGrid:
    return PatchGrid(**{"rows": 2, "columns": 2} | options)


def vit() -> nn.Module:
    return transformers.ViTModel(transformers.ViTConfig(**INNER)).eval()


def seen(folder: Path, resolution: int) -> object:
    reader = pictures.load_vision(str(write_vision(folder / "vit", "vit")), "float32")
    return pictures.record_picture(
        reader, pictures.read_picture(write_photo(folder / "photo.png")), resolution=resolution
    )


def text_alone(folder: Path) -> object:
    small("Bert").save_pretrained(folder)
    transformers.ViTImageProcessor().save_pretrained(folder)
    return pictures.load_vision(str(folder), "float32")


def kept() -> object:
    with torch.no_grad(), activations(GPT2) as result:
        GPT2(IDS)
    return result


def no_pandas(patch: object) -> object:
    patch.setitem(sys.modules, "pandas", None)  # type: ignore[attr-defined]
    return head_table(square()).to_pandas()


CALLS = {
    "open: a module alone": lambda: opened(tokenizer=None),
    "open: a module of this package alone": lambda: uwaga.models.open(GPT2),
    "open: a dict in place of a tokenizer": lambda: opened(tokenizer={}),
    "open: a training module": lambda: opened(tiny_models.theirs("gpt2").train()),
    "open: a training module of this package": lambda: uwaga.models.open(made("gpt2").train()),
    "open: a module and a dtype": lambda: uwaga.models.open(GPT2, dtype="float32"),
    "open: more tokens than embeddings": lambda: opened(tokenizer=word_tokenizer(size=71)),
    "open: a model of pictures": lambda: opened(vit()),
    "open: a family with attention of its own": lambda: opened(small("DebertaV2")),
    "open: no model": lambda: opened(nn.Linear(2, 2)),
    "open: a directory and a tokenizer": lambda model: uwaga.models.open(model, tokenizer=word_tokenizer()),
    "load: a dtype of integers": lambda model: uwaga.models.open(model, dtype="int8"),
    "load: a dtype that is none": lambda model: uwaga.models.open(model, dtype="half-float"),
    "Links: a query twice": lambda: Links([1, 1], 0),
    "Links: a query before the first": lambda: Links([-1], 0),
    "Links: a query that is true": lambda: Links(True, 0),
    "Links: queries in a string": lambda: Links("12", 0),
    "Links: half a key": lambda: Links(0, [0.5]),
    "Links: a factor that is none": lambda: Links(0, 0, float("nan")),
    "Patch: an operand by another name": lambda: Patch("head", x(1, 2)),
    "Patch: one vector": lambda: Patch("key", x(2)),
    "Patch: a list": lambda: Patch("key", [1.0]),
    "Patch: fewer positions than vectors": lambda: Patch("key", x(2, 3), [1]),
    "Patch.of: texts of other lengths": lambda: Patch.of(watch(ids=ragged(TEXTS)), "query", FIRST),
    "Patch.of: a position that one text lacks": lambda: Patch.of(watch(ids=ragged(TEXTS)), "key", FIRST, [3]),
    "Patch.of: a head that is not there": lambda: Patch.of(watch(), "key", ("decoder", 0, 9)),
    "Patch.of: an operand by another name": lambda: Patch.of(watch(), "head", FIRST),
    "Patch.of: no values": lambda: Patch.of(watch(), "value", FIRST),
    "Edits: heads in a list": lambda: Edits(heads=[1]),
    "Edits: a kind that there is not": lambda: Edits(heads={("self", 0, 0): 0.0}),
    "Edits: a key of two": lambda: Edits(heads={("decoder", 0): 0.0}),
    "Edits: a layer before the first": lambda: Edits(scores={("decoder", -1, 0): Links(0, 0)}),
    "Edits: a head by another word": lambda: Edits(heads={FIRST: "zero"}),
    "Edits: a head by a matrix": lambda: Edits(heads={FIRST: torch.ones(2, 2)}),
    "Edits: scores that are no links": lambda: Edits(scores={FIRST: [3]}),
    "Edits: an empty list of patches": lambda: Edits(patch={FIRST: []}),
    "Edits: scores with a factor": lambda: Edits(scores={FIRST: Links(0, 0, 0.5)}),
    "Edits: weights by a vector": lambda: Edits(weights={FIRST: torch.ones(2)}),
    "Edits.to_dict: a tensor": lambda: Edits(weights={FIRST: torch.ones(2, 2)}).to_dict(),
    "Edits.as_python: a tensor": lambda: Edits(patch={FIRST: Patch("key", torch.ones(1, 2))}).as_python(),
    "Edits.from_dict: a list": lambda: Edits.from_dict([]),
    "Edits.from_dict: patches": lambda: Edits.from_dict({"patch": []}),
    "Edits.from_dict: heads in a dict": lambda: Edits.from_dict({"heads": {}}),
    "Edits.from_dict: no value": lambda: Edits.from_dict({"heads": [ENTRY]}),
    "Edits.from_dict: a value that is true": lambda: Edits.from_dict({"heads": [ENTRY | {"value": True}]}),
    "Edits.from_dict: a head twice": lambda: Edits.from_dict({"heads": [ENTRY | {"value": 1}, ENTRY | {"value": 0}]}),
    "Edits.from_dict: a kind in a list": lambda: Edits.from_dict({"heads": [ENTRY | {"kind": ["encoder"], "value": 1}]}),
    "Edits.from_dict: scores with a factor": lambda: Edits.from_dict({"scores": [ENTRY | {"queries": [0], "keys": None, "factor": 0}]}),
    "Edits.from_dict: queries in a dict": lambda: Edits.from_dict({"scores": [ENTRY | {"queries": {"a": 1}, "keys": None}]}),
    "Edits.from_dict: too many": lambda: Edits.from_dict({"heads": [ENTRY | {"value": 1}] * 10_001}),
    "edit: a layer too far": lambda: edit(heads={("decoder", 7, 0): 0.0}),
    "edit: a kind that the model lacks": lambda: edit(heads={("cross", 0, 0): 0.0}),
    "edit: a head too far": lambda: edit(heads={("decoder", 0, 2): 0.0}),
    "edit: a head of transformers too far": lambda: edit(tiny_models.theirs("gpt2"), heads={("decoder", 0, 4): 0.0}),
    "edit: a key head too far": lambda: edit(tiny_models.theirs("llama"), patch={("decoder", 0, 2): Patch("key", x(1, 8))}),
    "edit: a patch of another width": lambda: edit(patch={FIRST: Patch("output", x(1, 5))}),
    "edit: a patch of other texts": lambda: edit(patch={FIRST: Patch("key", x(3, 1, 4))}),
    "edit: a matrix of fewer queries": lambda: edit(weights={FIRST: torch.ones(6, 7)}),
    "edit: a matrix and ragged rows": lambda: edit(ids=ragged(TEXTS), weights={FIRST: torch.ones(5, 5)}),
    "edit: a vector of another width": lambda: edit(heads={FIRST: torch.ones(3)}),
    "edit: a key that no text has": lambda: edit(scores={FIRST: Links(2, 9)}),
    "edit: a patched query that no text has": lambda: edit(patch={FIRST: Patch("query", x(1, 4), 7)}),
    "edit: no pass": lambda: nothing(uwaga.edit(GPT2, heads={FIRST: 0.0})),
    "edit: no attention": lambda: nothing(uwaga.edit(nn.Linear(2, 2))),
    "edit: Edits and heads": lambda: nothing(uwaga.edit(GPT2, Edits(), heads={})),
    "edit: weights under dropout": lambda: edit(with_dropout(), weights={FIRST: Links(0, 0)}),
    "edit: too many nested": nested,
    "edit: masks of many links": many_links,
    "edit: a packed batch": packed,
    "edit: a family with attention of its own": lambda: nothing(uwaga.edit(small("MPNet"), heads={("encoder", 0, 0): 0.0})),
    "watch: a kind that there is not": lambda: watch(made("t5"), kinds=["self"]),
    "watch: a layer too far": lambda: watch(made("t5"), layers=[0, 2]),
    "watch: a head too far": lambda: watch(made("t5"), heads=[0, 2]),
    "watch: no attention": lambda: nothing(uwaga.watch(nn.Linear(2, 2))),
    "watch: no pass": lambda: nothing(uwaga.watch(GPT2)),
    "watch: a family with attention of its own": lambda: nothing(uwaga.watch(small("MPNet"))),
    "watch: layers that share one attention": lambda: nothing(uwaga.watch(small("Albert", embedding_size=8))),
    "watch: two attentions of one name": lambda: nothing(uwaga.watch(nn.ModuleDict({"left": small("Bert"), "right": small("Bert")}))),
    "watch: a device that is none": lambda: Recording(device="gpu"),
    "watch: no bytes": lambda: Recording(max_bytes=0),
    "watch: half a byte": lambda: Recording(max_bytes=1.5),
    "watch: bytes that are true": lambda: Recording(max_bytes=True),
    "watch: bytes in a string": lambda: Recording(max_bytes="1 GB"),
    "watch: too many bytes": lambda: recording(asked(), max_bytes=100),
    "watch: a tokenizer and tokens": lambda: TokenStrings(str, ["a"]),
    "watch: a tokenizer that is a number": lambda: TokenStrings(5, None),
    "watch: tokens of one row": lambda: recording(asked(), strings=TokenStrings(None, ["a"] * 4)).tokens,
    "watch: tokens of two stacks": lambda: recording(asked(), asked(DECODER), strings=TokenStrings(None, ["a"] * 4)).tokens,
    "watch: steps with a dense mask": lambda: recording(asked(DECODER, mask=torch.ones(4, 4, dtype=torch.bool)), asked(DECODER, 1, 5)),
    "watch: steps with other masks": lambda: recording(asked(DECODER, mask=Causal()), asked(DECODER, 1, 5, mask=uwaga.Window(2, 0))),
    "watch: steps with dense biases": lambda: recording(asked(DECODER, bias=torch.randn(2, 2, 4, 4)), asked(DECODER, 1, 5, bias=torch.randn(2, 2, 1, 5))),
    "watch: layers that remember different pasts": different_pasts,
    "Recording: rows that were split": split_row,
    "Recording: drafts": lambda: drafts("llama")[0].tokens,
    "Recording.of: drafts in a window": lambda: Recording.of(*drafts("mistral")),
    "Recording.of: nothing recorded": lambda: Recording().of([[1]]),
    "Recording.of: a text that was not recorded": lambda: recording(asked(DECODER, ids=IDS[:, :4], mask=Causal())).of([[4, 5, 6, 7, 9], [9, 10, 9, 9]]),
    "Recording.of: fewer texts than rows of the encoder": lambda: recording(asked(), asked(DECODER, ids=torch.zeros(2, 4).long(), mask=Causal())).of([[0] * 4]),
    "Recording.of: a file": lambda folder: loaded(folder).of([[5, 6, 7]]),
    "Recording.maps: one that there is not": lambda: recording(asked(CROSS), asked(AttentionId("cross", 1))).maps["encoder", 0],
    "Recording.values: none kept": lambda: recording(asked()).values["encoder", 0],
    "Recording.save: nothing recorded": lambda folder: Recording().save(folder / "a"),
    "Recording.save: beams": lambda folder: beams().save(folder / "a"),
    "Recording.save: a lone surrogate": lambda folder: named("\ud800").save(folder / "a"),
    "Recording.save: a long description": long_description,
    "score_attribution: a layer too far": lambda: score(3, 0),
    "score_attribution: a layer that is true": lambda: score(True, 0),
    "score_attribution: a kind that the model lacks": lambda: score(0, 0, kind="cross"),
    "score_attribution: a head too far": lambda: score(0, 2),
    "score_attribution: a query too far": lambda: score(0, 0, 7, 0),
    "score_attribution: a key too far": lambda: score(0, 0, 6, -8),
    "score_attribution: half a key": lambda: score(0, 0, 6, 1.5),
    "score_attribution: queries of floats": lambda: score(0, 0, torch.tensor([6.0, 5.0]), [1, 2]),
    "score_attribution: a row too far": lambda: score(0, 0, row=2),
    "score_attribution: a hidden key": lambda: score(0, 0, 2, 3),
    "score_attribution: fewer keys than queries": lambda: score(0, 0, [2, 3], [1]),
    "score_attribution: queries alone": lambda: score(0, 0, torch.tensor([2])),
    "score_attribution: other ids": lambda: score(1, 0, 2, 1, given=watch(values=True), ids=IDS + 1),
    "score_attribution: another key too far": lambda: score(0, 0, 3, 2, than=7),
    "score_attribution: another key that is hidden": lambda: score(0, 0, 3, 2, than=4),
    "score_attribution: other keys than scores": lambda: score(0, 0, 3, 2, than=[1, 0]),
    "score_attribution: no scores": lambda: score(0, 0, most=0),
    "score_attribution: an option of the model": lambda: score(0, 0, cache=1),
    "score_attribution: an option and a recording": lambda: score(0, 0, given=watch(values=True), lengths=1),
    "score_attribution: no values": lambda: score(1, 0, 2, 1, given=watch()),
    "score_attribution: a layer that was not recorded": lambda: score(1, 0, 2, 1, given=watch(values=True, layers=[1, 2])),
    "score_attribution: the layer itself was not recorded": lambda: score(0, 0, 2, 1, given=watch(values=True, layers=[1])),
    "score_attribution: heads that were not recorded": lambda: score(1, 0, 2, 1, given=watch(values=True, heads=[1])),
    "score_attribution: a training model": lambda: score(0, 0, of=made("gpt2").train()),
    "score_attribution: a file": lambda folder: score(1, 0, 2, 1, given=loaded(folder)),
    "score_attribution: a file and shorter ids": lambda folder: score(1, 0, 2, 1, given=loaded(folder), row=1, ids=IDS[:, :3]),
    "score_attribution: a recording that began late": lambda: score(1, 0, 2, 1, given=late()),
    "score_attribution: a model without a weight of its family": lambda: score(0, 0, of=nomic()),
    "ScoreAttribution.back: many scores": lambda: score(1, 0).back(HEAD, "key"),
    "ScoreAttribution.back: a side by another name": lambda: back(side="value"),
    "ScoreAttribution.back: a head of the layer": lambda: back(Part("head", "decoder", 1, 0)),
    "ScoreAttribution.back: a token": lambda: back(Part("token")),
    "ScoreAttribution.back: no top": lambda: back(top=0),
    "ScoreAttribution.top: none": lambda: score(1, 0, 2, 1).top(0),
    "ScoreAttribution: a score too far": lambda: score(1, 0, 2, 1)[1],
    "logit_lens: a model without a final norm": lambda: logit_lens(made("bert"), IDS),
    "logit_lens: too many tokens": lambda: logit_lens(GPT2, IDS, top=21),
    "logit_lens: ragged texts": lambda: logit_lens(GPT2, ragged(TEXTS)),
    "logit_attribution: a post-norm model": lambda: logit_attribution(made("transformer"), IDS, IDS, answer=1),
    "logit_attribution: a family of transformers": lambda: logit_attribution(tiny_models.theirs("gemma2"), IDS, answer=1),
    "logit_attribution: no token": lambda: logit_attribution(GPT2, IDS, answer=20),
    "logit_attribution: answers of other rows": lambda: logit_attribution(GPT2, IDS, answer=torch.ones(3, dtype=torch.int64)),
    "LogitAttribution.of_heads: a kind that there is not": lambda: logit_attribution(GPT2, IDS, answer=1).of_heads("encoder"),
    "activation_patching: a head too far": lambda: patched(heads=[2]),
    "activation_patching: a position too far": lambda: patched(positions=[7]),
    "activation_patching: a metric of many numbers": lambda: patched(metric=lambda out: out.logits[0]),
    "activation_patching: a metric that is none": lambda: patched(metric=lambda _: float("nan")),
    "activation_patching: ragged texts": lambda: patched(clean=ragged([[4, 5, 6, 7, 8]]), metric=ragged_metric),
    "activation_patching: a layer too far": lambda: patched(layers=[3]),
    "activation_patching: a training model": lambda: patched(of=made("gpt2").train()),
    "activation_patching: another call to resume": lambda: patched(positions=[1], resume=patched(positions=[1, 3], limit=1)),
    "PatchingResult.effects: one metric of both texts": lambda: patched(metric=lambda _: 1.0, limit=0).effects(),
    "PatchingResult.from_dict: a kind that there is not": lambda: PatchingResult.from_dict(DESCRIBED | {"kind": "self"}),
    "PatchingResult.from_dict: a layer that is true": lambda: PatchingResult.from_dict(DESCRIBED | {"layers": [True, 1]}),
    "PatchingResult.from_dict: a span that is a number": lambda: PatchingResult.from_dict(DESCRIBED | {"spans": [3]}),
    "PatchingResult.from_dict: fewer values": lambda: PatchingResult.from_dict(DESCRIBED | {"values": [[[0.5]]]}),
    "PatchingResult.from_dict: a value in a string": lambda: PatchingResult.from_dict(DESCRIBED | {"values": [[[0.5]], [["1"]]]}),
    "PatchingResult.from_dict: an infinite value": lambda: PatchingResult.from_dict(DESCRIBED | {"values": [[[0.5]], [[float("inf")]]]}),
    "PatchingResult.from_dict: no clean": lambda: PatchingResult.from_dict(DESCRIBED | {"clean": None}),
    "PatchingResult.from_dict: more": lambda: PatchingResult.from_dict(DESCRIBED | {"more": 1}),
    "patching_effects: no head": lambda: patching_effects(patched(positions=[1])),
    "activations: no pass": lambda: nothing(activations(GPT2)),
    "Activations: one that there is not": lambda: kept()["cross", 0],
    "Activations: no gradient": lambda: kept()[FIRST[:2]].gradient_map(),
    "Activations: a kind that there is not": lambda: kept().gradient_maps("encoder"),
    "cache_edit: ragged rows": lambda: forgets(ids=ragged(TEXTS)),
    "cache_edit: a pass with a cache": forgets_writing,
    "cache_edit: a prompt of the text": lambda: forgets(ids=LONG[:, :2], prompt=2),
    "cache_edit: no tokens": lambda: forgets(ids=LONG[:, :0]),
    "cache_edit: a large mask": forgets_much,
    "cache_edit: no budget": lambda: forgets(budget=0),
    "cache_edit: half a budget": lambda: forgets(budget=2.5),
    "cache_edit: a prompt below none": lambda: forgets(prompt=-1),
    "cache_edit: half a prompt": lambda: forgets(prompt=1.5),
    "cache_edit: a layer too far": lambda: forgets(layers=[1, 7]),
    "cache_edit: an encoder": lambda: forgets(made("bert")),
    "cache_edit: no attention": lambda: nothing(cache_edit(nn.Linear(2, 2), cache.window, 4)),
    "cache_study: no budgets": lambda: study(budgets=[]),
    "cache_study: a budget of none": lambda: study(budgets=[0, 4]),
    "cache_study: descending budgets": lambda: study(budgets=[8, 4]),
    "cache_study: a budget that is a float": lambda: study(budgets=[4.0]),
    "cache_study: a prompt below none": lambda: study(prompt=-1),
    "cache_study: a prompt of the text": lambda: study(prompt=40),
    "cache_study: every none": lambda: study(every=0),
    "cache_study: every that is true": lambda: study(every=True),
    "cache_study: fewer layers than recorded": lambda: study(layers=2),
    "cache_study: a quantile past 1": lambda: study(quantiles=[1.5]),
    "cache_study: no policy": lambda: study([]),
    "cache_study: a policy twice": lambda: study([cache.h2o, cache.h2o]),
    "cache_study: a policy without a name": lambda: study([partial(int)]),
    "cache_study: an encoder": lambda: cache_study(watch(made("bert"), values=True), budgets=[4]),
    "cache_study: no values": lambda: cache_study(watch(), budgets=[4]),
    "cache_study: attention that is not causal": lambda: causal_layer("cache_study", square(mask=None), 2, number=3, layers=4),
    "cache_study: queries of a cache": lambda: causal_layer("cache_study", AttentionMap(x(2, 2, 4), x(2, 6, 4), mask=Causal()), 1, number=3, layers=4),
    "cache_study: a text without tokens": lambda: study(ids=uwaga.Ragged.from_list([LONG[0, :3], LONG[0, :0]])),
    "cache_study: no texts": lambda: study(ids=uwaga.Ragged(LONG[0, :0], torch.tensor([0]))),
    "CacheStudy.mean: a statistic that there is not": lambda: study().mean("loss", "window"),
    "CacheStudy.mean: a policy that there is not": lambda: study().mean("error", "h2o"),
    "CacheStudy.table: a policy that there is not": lambda: study().table("h2o"),
    "CacheStudy.table: a budget that there is not": lambda: study().table(budget=9),
    "streaming_llm: all sinks": lambda: policy(cache.streaming_llm, 4),
    "streaming_llm: sinks below none": lambda: policy(partial(cache.streaming_llm, sinks=-1), 4),
    "h2o: too many recent": lambda: policy(partial(cache.h2o, recent=9)),
    "h2o: some heads": lambda: policy(cache.h2o, head_numbers=[1, 3]),
    "tova: some heads": lambda: policy(cache.tova, head_numbers=[1, 3]),
    "snap_kv: some heads": lambda: policy(partial(cache.snap_kv, observed=4), head_numbers=[1, 3]),
    "snap_kv: a small budget": lambda: policy(cache.snap_kv, 32),
    "snap_kv: an even kernel": lambda: policy(partial(cache.snap_kv, observed=2, kernel_size=4)),
    "snap_kv: pooling": lambda: policy(partial(cache.snap_kv, observed=2, pooling="sum")),
    "pyramid_kv: some heads": lambda: policy(partial(cache.pyramid_kv, observed=4), head_numbers=[1, 3]),
    "pyramid_kv: a small budget": lambda: policy(cache.pyramid_kv, 32),
    "pyramid_kv: an even kernel": lambda: policy(partial(cache.pyramid_kv, observed=2, kernel_size=4)),
    "pyramid_kv: pooling": lambda: policy(partial(cache.pyramid_kv, observed=2, pooling="sum")),
    "pyramid_kv: beta": lambda: policy(partial(cache.pyramid_kv, beta=0.5), 40),
    "quest: less than a page": lambda: policy(cache.quest, 15),
    "vertical_slash: columns": lambda: policy(partial(cache.vertical_slash, columns=2)),
    "vertical_slash: no last queries": lambda: policy(partial(cache.vertical_slash, last=0)),
    "Evicted: sets that heads do not share": lambda: cache.Evicted(torch.zeros((3, 8), dtype=torch.int64), 2),
    "Evicted: more sets than heads": lambda: cache.Evicted(torch.zeros((3, 8), dtype=torch.int64), 4),
    "Evicted: no sets": lambda: cache.Evicted(torch.zeros((0, 8), dtype=torch.int64), 2),
    "Evicted: one dimension": lambda: cache.Evicted(torch.zeros(8, dtype=torch.int64), 2),
    "coreference_heads: no pairs": lambda: coreference_heads("minilm", []),
    "WinogradPair: a word that the text lacks": lambda: WinogradPair(PAIR.text, PAIR.words, "it", ("cat", "dog")),
    "WinogradPair: no place for a word": lambda: WinogradPair("The cat left the box.", ("a", "b"), "cat", ("cat", "box")),
    "head_labels: a row before the first": lambda: head_labels(watch(made("bert"), tokens=["a"] * 7, ids=IDS[:1]), row=-1),
    "head_labels: a row too far": lambda: head_labels(watch(made("bert"), tokens=["a"] * 7, ids=IDS[:1]), row=1),
    "head_labels: no tokens": lambda: head_labels(recording(asked())),
    "head_table: a recording and tokens": lambda: head_table(recording(asked()), TYPES),
    "HeadTable: a column that there is not": lambda: HeadTable(columns={"layer": [0], "head": [0], "sink": [0.1]}).matrix("entropie"),
    "HeadTable.to_pandas: no pandas": no_pandas,
    "head_changes: other heads": lambda: head_changes(watch(heads=[0]), watch(heads=[1])),
    "head_changes: other layers": lambda: head_changes(watch(), watch(layers=[0, 1])),
    "head_changes: other shapes": lambda: head_changes({0: square()}, {0: square(tokens=5)}),
    "head scores: tokens that are floats": lambda: induction(square(), torch.zeros(8)),
    "head scores: fewer tokens than keys": lambda: induction(square(3), TYPES[:7]),
    "head scores: more queries than keys": lambda: duplicate_token(AttentionMap(x(2, 9, 4), x(2, 8, 4)), TYPES),
    "head scores: ragged tokens of other lengths": lambda: duplicate_token(AttentionMap(*[uwaga.Ragged.from_list([x(3, 1, 4), x(5, 1, 4)])] * 2), uwaga.Ragged.from_list([TYPES[:4], TYPES[4:]])),
    "rollout: no maps": lambda: rollout([]),
    "rollout: a residual past 1": lambda: rollout([square()], residual=1.5),
    "rollout: layers of other texts": lambda: rollout([square(), square(tokens=6)]),
    "rollout: a map that is not square": lambda: rollout([AttentionMap(x(3, 2, 4), x(3, 7, 4))]),
    "rollout: a token too far": lambda: rollout([square()], 8),
    "rollout: a token before the first": lambda: rollout([square(2)], torch.tensor([0, -9])),
    "value_norms: a projection of other rows": lambda: value_norms(x(2, 2, 5, 3), x(10, 12)),
    "ScaledMap: a scale of another shape": lambda: ScaledMap(square(), torch.ones(4)),
    "GradientMap: fewer values": lambda: GradientMap(square(), x(2, 6, 3), x(2, 8, 3)),
    "GradientMap: gradients of fewer heads": lambda: GradientMap(square(), x(2, 8, 3), x(1, 8, 3)),
    "GradientMap: narrower values": lambda: GradientMap(square(), x(2, 8, 2), x(2, 8, 3)),
    "GradientMap: values of fewer texts": lambda: GradientMap(square(2), x(1, 2, 8, 3), x(2, 2, 8, 3)),
    "GradientMap: a ragged map and dense values": lambda: GradientMap(AttentionMap(*[uwaga.Ragged.from_list([x(3, 1, 4)])] * 2), x(2, 3), x(2, 3)),
    "GradientMap: a dense map and ragged values": lambda: GradientMap(square(), *[uwaga.Ragged.from_list([x(3, 1, 4)])] * 2),
    "gradient_rollout: no maps": lambda: gradient_rollout([]),
    "gradient_rollout: a token too far": lambda: gradient_rollout([gradient_map()], 9),
    "cross_gradient_rollout: fewer maps of cross-attention": lambda: cross_gradient_rollout([gradient_map()], [gradient_map(4, 4)] * 2, [gradient_map(4)]),
    "cross_gradient_rollout: maps of other tokens": lambda: cross_gradient_rollout([gradient_map()], [gradient_map(4, 4)], [gradient_map(4, 4)]),
    "cross_gradient_rollout: no maps of cross-attention": lambda: cross_gradient_rollout([gradient_map()], [gradient_map(4, 4)], []),
    "cross_gradient_rollout: no maps of the decoder": lambda: cross_gradient_rollout([gradient_map()], [], [gradient_map(4)]),
    "cross_gradient_rollout: a token too far": lambda: cross_gradient_rollout([gradient_map()], [gradient_map(4, 4)], [gradient_map(4)], 4),
    "PatchGrid: no rows": lambda: grid(rows=0),
    "PatchGrid: a start before the first": lambda: grid(start=-1),
    "PatchGrid: half a column": lambda: grid(columns=1.5),
    "PatchGrid: a patch of no width": lambda: grid(patch_size=(4, 0)),
    "PatchGrid: a patch outside": lambda: grid().position(2, 0),
    "PatchGrid: a patch before the first": lambda: grid().looks_at(square(tokens=4), (0, -1)),
    "PatchGrid: a position that is no patch": lambda: grid(start=3).cell(2),
    "PatchGrid: a map of fewer tokens": lambda: grid(start=2).looks_at(square(tokens=5), 0),
    "PatchGrid: which picture": lambda: grid().looks_at(square(2, tokens=5), 0),
    "PatchGrid: a picture too far": lambda: grid().looks_at(square(2, tokens=5), 0, picture=2),
    "PatchGrid: a picture too far of one": lambda: grid().looks_at(square(tokens=5), 0, picture=7),
    "PatchGrid: a token by name": lambda: grid().looks_at(square(tokens=5), "cat"),
    "image_grids: half a shape": lambda: image_grids([9, 9], 9, shapes=[(1.5, 2)]),
    "image_grids: a picture that is no square": lambda: image_grids([9, 9, 9, 1], 9),
    "image_grids: pictures of other sizes": lambda: image_grids([9, 9, 9, 1], 9, shapes=[(2, 2)]),
    "image_grids: tokens apart": lambda: image_grids([9, 1, 9], 9, shapes=[(1, 2)]),
    "image_grids: ids of a batch": lambda: image_grids(torch.tensor([[9, 9]]), 9),
    "patch_grid: a picture that is too small": lambda: patch_grid(vit(), x(1, 3, 7, 32)),
    "a picture of no pixels": lambda folder: seen(folder, 0),
    "a picture of too many pixels": lambda folder: seen(folder, 4097),
    "a picture smaller than a patch": lambda folder: seen(folder, 7),
    "a picture for a model of texts": text_alone,
    "patch_grid: no vision model": lambda: patch_grid(nn.Linear(1, 1), x(1, 3, 8, 8)),
}  # fmt: skip
