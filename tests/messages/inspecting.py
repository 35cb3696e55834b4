"""Calls that watch, edit and study attention, and raise.

The file is not inspect.py, which record.py would import in place of Python's module. Letters: H heads, N tokens.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tiny_models
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import ask
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
    images,
    logit_attribution,
    logit_lens,
    patch_grid,
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
        ask(result, where, query, key, ids, **more)
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


def drafts(family: str) -> Recording:
    """What was recorded of a generation that looks its drafts up in the prompt."""
    model, prompt = tiny_models.theirs(family), tiny_models.tokens(1, 10).repeat(1, 2)
    with uwaga.watch(model) as result:
        model.generate(prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)
    return result


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


def changed(folder: Path, change: Callable[[dict], object]) -> Recording:
    """A saved recording whose description contradicts itself."""
    recording(asked(mask=uwaga.KeyLengths(torch.tensor([4, 4])))).save(folder / "a")
    with safe_open(folder / "a", framework="pt") as file:
        described = json.loads(file.metadata()["uwaga"])
    change(described)
    save_file(load_file(folder / "a"), folder / "b", metadata={"uwaga": json.dumps(described)})
    return Recording.load(folder / "b")


def late() -> Recording:
    cache = GPT2.new_cache()
    with torch.no_grad():
        GPT2(IDS[:, :4], cache=cache)
        with uwaga.watch(GPT2, values=True) as result:
            GPT2(IDS[:, 4:], cache=cache)
    return result


def score(*where: object, of: nn.Module = GPT2, inputs: object = None, **options: object) -> object:
    return score_attribution(of, watch(of, values=True) if inputs is None else inputs, *where, **options)


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
    reader = images.load_vision(str(write_vision(folder / "vit", "vit")), "float32")
    return images.record_image(reader, images.read_image(write_photo(folder / "photo.png")), resolution=resolution)


def text_alone(folder: Path) -> object:
    small("Bert").save_pretrained(folder)
    transformers.ViTImageProcessor().save_pretrained(folder)
    return images.load_vision(str(folder), "float32")


def kept() -> object:
    with torch.no_grad(), activations(GPT2) as result:
        GPT2(IDS)
    return result


def no_pandas(patch: object) -> object:
    patch.setitem(sys.modules, "pandas", None)  # type: ignore[attr-defined]
    return head_table(square()).to_pandas()
