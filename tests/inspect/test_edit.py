"""Changes of attention in this package's models. Letters: B batch, H query heads, Q queries, K keys, D width."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from test_watch import PROMPTS, WRITERS, bert, gpt2, ragged
from tolerance import assert_as_exact
from torch import Tensor, nn

import uwaga
from uwaga._base import threads
from uwaga.inspect import activations, editing
from uwaga.models import generate
from uwaga.nn import MultiHeadAttention
from uwaga.ops.masks import DenseMask, as_mask
from uwaga.ops.score_shape import ScoreShape

IDS = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 11, 12, 13]])
ALL = {"bert": bert, **WRITERS}
HEAD = 1


def run(model: nn.Module, ids: Tensor = IDS) -> Tensor:
    return model(ids, ids[:, :4] if model.config.has_both else None).last_hidden_state


def kinds_of(model: nn.Module) -> list[tuple[str, MultiHeadAttention]]:
    """The last layer of each kind."""
    with uwaga.watch(model) as recording:
        run(model)
    last = dict(recording.maps)
    return [max(name for name in last if name[0] == kind) for kind in dict.fromkeys(kind for kind, _ in last)]


def layer_of(model: nn.Module, where: tuple[str, int]) -> MultiHeadAttention:
    from uwaga.models.attention_layers import attention_layers

    return next(module for module, each in attention_layers(model).items() if each == where)


def scaled_by_a_hook(layer: MultiHeadAttention, factor: float) -> Callable[[], None]:
    """The head's part of the input of W_O, scaled by a hook."""

    def hook(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        parts = given[0].unflatten(-1, (layer.num_heads, -1)).clone()
        parts[..., HEAD, :] *= factor
        return (parts.flatten(-2),)

    return layer.output.register_forward_pre_hook(hook).remove


@pytest.mark.parametrize("factor", [0.0, -0.7, 3.0])
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_scaled_head_is_that_of_a_hook_bit_for_bit(name: str, factor: float) -> None:
    model = ALL[name]()
    for where in kinds_of(model):
        layer = layer_of(model, where)
        before = run(model)
        remove = scaled_by_a_hook(layer, factor)
        expected = run(model)
        remove()
        # A module with a hook is called as it is: then both products are PyTorch's.
        same_product = layer.output.register_forward_pre_hook(lambda *_: None)
        with uwaga.edit(model, heads={(*where, HEAD): factor}):
            result = run(model)
        same_product.remove()
        assert torch.equal(result, expected)
        assert not torch.equal(result, before)
        assert torch.equal(run(model), before)


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_a_generation_is_that_with_a_hook_token_by_token(name: str) -> None:
    model = WRITERS[name]()
    for where in kinds_of(model):
        layer = layer_of(model, where)
        plain = generate(model, PROMPTS, max_new_tokens=8)
        remove = scaled_by_a_hook(layer, -4.0)
        expected = generate(model, PROMPTS, max_new_tokens=8)
        beams = generate(model, PROMPTS, max_new_tokens=8, num_beams=3)
        remove()
        same_product = layer.output.register_forward_pre_hook(lambda *_: None)
        with uwaga.edit(model, heads={(*where, HEAD): -4.0}):
            assert generate(model, PROMPTS, max_new_tokens=8) == expected
            assert generate(model, PROMPTS, max_new_tokens=8, num_beams=3) == beams
        same_product.remove()
        assert generate(model, PROMPTS, max_new_tokens=8) == plain


@contextmanager
def changed_heads(layer: MultiHeadAttention, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """The results of all heads, (B, H, Q, E), changed on their way to W_O."""
    original = uwaga.nn.attention._merge_heads

    def merge_heads(linear: nn.Linear, heads: Tensor, *others: object, **options: object) -> Tensor:
        return original(linear, change(heads) if linear is layer.output else heads, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uwaga.nn.attention, "_merge_heads", merge_heads)
        yield


def blocked_by_a_hook(layer: MultiHeadAttention, queries: list[int], keys: list[int], head: int | None) -> Callable:
    """The mask that the layer is called with, & a dense one."""

    def hook(_: nn.Module, given: tuple, options: dict) -> tuple:
        other = options.get("key")
        size = given[0].shape[-2], (given[0] if other is None else other).shape[-2]
        shown = torch.ones(layer.num_heads, *size, dtype=torch.bool)
        shown[slice(None) if head is None else head, torch.tensor(queries)[:, None], torch.tensor(keys)] = False
        mask = options["mask"]
        return given, options | {"mask": as_mask(shown) if mask is None else as_mask(mask) & shown}

    return layer.register_forward_pre_hook(hook, with_kwargs=True).remove


@pytest.mark.parametrize("head", [HEAD, None])
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_blocked_links_are_those_of_a_dense_mask_bit_for_bit(name: str, head: int | None) -> None:
    model = ALL[name]()
    for where in kinds_of(model):
        before = run(model)
        remove = blocked_by_a_hook(layer_of(model, where), [2, 3], [0, 2], head)
        expected = run(model)
        remove()
        with uwaga.edit(model, scores={(*where, head): uwaga.Links([2, 3], [0, 2])}):
            result = run(model)
            with uwaga.watch(model) as recording:
                run(model)
        assert torch.equal(result, expected)
        assert not torch.equal(result, before)
        weights = recording.maps[where].to_dense()
        shown = weights[:, HEAD, 2:4][..., [0, 2]]
        assert torch.equal(shown, torch.zeros_like(shown))
        assert (weights[:, HEAD].sum(-1) > 0.99).all()
        assert (weights[:, 1 - HEAD, 2, 0] > 0).all() == (head is not None)


@torch.no_grad()
def test_several_links_of_several_heads_block_each_their_own() -> None:
    model = bert()
    links = {
        ("encoder", 1, 0): [uwaga.Links(0, [1, 2]), uwaga.Links([3, 4], 0)],
        ("encoder", 1, 1): uwaga.Links(None, 2),
    }
    with uwaga.edit(model, scores=links), uwaga.watch(model) as recording:
        run(model)
    weights = recording.maps[("encoder", 1)].to_dense()[0]
    hidden = torch.zeros(2, 5, 5, dtype=torch.bool)
    hidden[0, 0, 1:3] = hidden[0, 3:, 0] = hidden[1, :, 2] = True
    assert torch.equal(weights == 0, hidden)


def scattered(tokens: int, count: int, **factor: float) -> list[uwaga.Links]:
    """Links of one query and one key each, no query to itself."""
    return [uwaga.Links(n % tokens, (n + 1 + n // tokens % (tokens - 1)) % tokens, **factor) for n in range(count)]


@pytest.mark.parametrize("kind", ["scores", "weights"])
@torch.no_grad()
def test_a_thousand_links_are_the_same_as_few_that_cover_them(kind: str) -> None:
    """More than Python has frames for, one within another."""
    model, where = bert(), ("encoder", 1, None)
    keep = {} if kind == "scores" else {"factor": 1.0}
    many = [*scattered(5, 1000, **keep), uwaga.Links([0, 1], [2], **({} if kind == "scores" else {"factor": 0.5}))]
    few = (
        [uwaga.Links(n, [each for each in range(5) if each != n]) for n in range(5)] if kind == "scores" else many[-1:]
    )
    with uwaga.edit(model, **{kind: {where: few}}):
        expected = run(model)
    with uwaga.edit(model, **{kind: {where: many}}), uwaga.watch(model) as recording:
        result = run(model)
    assert torch.equal(result, expected)
    if kind == "scores":
        assert torch.equal(recording.maps["encoder", 1].to_dense(), torch.eye(5).expand(2, 2, 5, 5))


@pytest.mark.parametrize("form", ["dense", "apart"])
@torch.no_grad()
def test_masks_of_many_links_have_the_same_pairs_in_both_forms(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editing, "MANY_LINKS", 0)
    monkeypatch.setattr(editing, "SMALL_MASK_BYTES", 0 if form == "apart" else 1 << 24)
    links = scattered(60, 29)
    x = torch.randn(1, 2, 60, 8)
    where = editing.Where("encoder", 0, 1)
    mask = editing._links_mask([(where, each) for each in links], editing._Tokens(x, x, 0))
    assert isinstance(mask, DenseMask) == (form == "dense")
    assert getattr(mask, "nesting", 0) <= 6
    visible = mask.dense(ScoreShape(queries=60, keys=60, batch=(1,), heads=2))[0]
    expected = torch.ones(2, 60, 60, dtype=torch.bool)
    for each in links:
        expected[1, each.queries[0], each.keys[0]] = False
    assert torch.equal(visible.expand(2, 60, 60), expected)


@torch.no_grad()
def test_a_query_that_sees_nothing_gives_zeros() -> None:
    model = gpt2()
    with uwaga.edit(model, scores={("decoder", 2, None): uwaga.Links(0, 0)}):
        result = run(model)
    layer = layer_of(model, ("decoder", 2))
    with changed_heads(layer, lambda heads: heads.index_fill(-2, torch.tensor([0]), 0.0)):
        expected = run(model)
    assert torch.equal(result, expected)


class DenseWeights(nn.Module):
    """The attention of a layer from dense weights that are changed after softmax."""

    def __init__(self, layer: MultiHeadAttention, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.change, self.query = (
            layer,
            change,
            layer.query,
        )  # the layer around it reads the width of `query`

    def forward(self, query: Tensor, key: Tensor | None = None, **options: object) -> Tensor:
        qkv = self.layer.project(query, *([query] * 2 if key is None else [key] * 2))
        m = uwaga.AttentionMap(
            qkv.query, qkv.key, mask=options["mask"], bias=options.get("bias"), scale=self.layer.scale
        )
        heads = self.change(m.to_dense()) @ qkv.value
        return self.layer.output(heads.transpose(-3, -2).flatten(-2))


def with_dense_weights(model: nn.Module, where: tuple[str, int], change: Callable[[Tensor], Tensor]) -> Tensor:
    replaced = copy.deepcopy(model)
    layer = layer_of(replaced, where)
    parent = next(
        (module, name) for module in replaced.modules() for name, child in module.named_children() if child is layer
    )
    setattr(*parent, DenseWeights(layer, change))
    return run(replaced)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_links_that_are_weakened_after_softmax_leave_the_rest_of_the_row(name: str) -> None:
    model = ALL[name]()
    exact = copy.deepcopy(model).double()
    links = [uwaga.Links([2, 3], [0, 2]), uwaga.Links([3], [1], factor=0.5)]

    def change(weights_BHQK: Tensor) -> Tensor:
        changed = weights_BHQK.clone()
        changed[:, HEAD, 2:4, 0] = changed[:, HEAD, 2:4, 2] = 0
        changed[:, HEAD, 3, 1] *= 0.5
        return changed

    for where in kinds_of(model):
        with uwaga.edit(model, weights={(*where, HEAD): links}):
            result = run(model)
        expected = with_dense_weights(model, where, change)
        assert not torch.equal(result, run(model))
        assert_as_exact(result, expected, partial(with_dense_weights, exact, where, change))


@torch.no_grad()
def test_heads_that_share_keys_have_links_of_their_own() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4, num_kv_heads=2)
    x = torch.randn(2, 5, 16)
    links = {("encoder", 0, 1): uwaga.Links([1, 2], 0), ("encoder", 0, 2): uwaga.Links([2], [3, 4])}
    with uwaga.edit(layer, weights=links):
        result = layer(x)
    qkv = layer.project(x, x, x)
    weights = uwaga.AttentionMap(qkv.query, qkv.key).to_dense()
    weights[:, 1, 1:3, 0] = weights[:, 2, 2, 3:] = 0
    expected = layer.output((weights @ qkv.value.repeat_interleave(2, 1)).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(result, expected)


@torch.no_grad()
def test_a_matrix_takes_the_place_of_the_weights() -> None:
    model, weights = gpt2(), torch.rand(5, 5).tril()
    exact = copy.deepcopy(model).double()

    def change(weights_BHQK: Tensor) -> Tensor:
        changed = weights_BHQK.clone()
        changed[:, HEAD] = weights.to(changed)
        return changed

    with uwaga.edit(model, weights={("decoder", 1, HEAD): weights}):
        result = run(model)
    where = ("decoder", 1)
    assert_as_exact(result, with_dense_weights(model, where, change), partial(with_dense_weights, exact, where, change))
    # One text after another through a cache reads the rows of the matrix in turn.
    with uwaga.edit(model, weights={("decoder", 1, HEAD): weights}):
        cache = model.new_cache()
        parts = [model(IDS[:, a:b], cache=cache).last_hidden_state for a, b in ((0, 2), (2, 3), (3, 5))]
    torch.testing.assert_close(torch.cat(parts, 1), result)


@pytest.mark.parametrize("operand", ["query", "key", "value"])
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_patched_projections_are_those_of_another_projection_bit_for_bit(name: str, operand: str) -> None:
    model = ALL[name]()
    for where in kinds_of(model):
        layer = layer_of(model, where)
        vectors = torch.randn(2, layer.d_k)
        before, project = run(model), layer.project

        def patched(
            *given: object, vectors: Tensor = vectors, project: Callable = project, **options: object
        ) -> object:
            qkv = project(*given, **options)
            changed = getattr(qkv, operand).clone()
            changed[:, HEAD, [3, 1]] = vectors
            return qkv._replace(**{operand: changed})

        layer.project = patched
        expected = run(model)
        layer.project = project
        with uwaga.edit(model, patch={(*where, HEAD): uwaga.Patch(operand, vectors, [3, 1])}):
            result = run(model)
        assert torch.equal(result, expected)
        assert not torch.equal(result, before)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_patched_outputs_of_each_text_are_those_of_other_heads_bit_for_bit(name: str) -> None:
    model = ALL[name]()
    for where in kinds_of(model):
        layer = layer_of(model, where)
        vectors = torch.randn(2, 2, layer.d_v)

        def change(heads: Tensor, vectors: Tensor = vectors) -> Tensor:
            changed = heads.clone()
            changed[:, HEAD, [0, 2]] = vectors
            return changed

        with changed_heads(layer, change):
            expected = run(model)
        with uwaga.edit(model, patch={(*where, HEAD): uwaga.Patch("output", vectors, [0, 2])}):
            result = run(model)
        assert torch.equal(result, expected)


EVERY = {
    "scores": uwaga.Links([1, 3], [0, 1]),
    "weights": uwaga.Links([2, 3], 1, factor=0.25),
    "patch": [uwaga.Patch("output", torch.ones(1, 4), 3), uwaga.Patch("key", torch.ones(1, 4), 1)],
    "heads": -2.0,
}


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_positions_of_a_generation_are_those_of_one_pass_over_its_text(name: str) -> None:
    """With caches, ragged prompts of different lengths, and no cache at all, the text is the same, and so are its positions."""
    model = WRITERS[name]()
    prompts = [[4, 5, 6, 7], [8, 9]] if model.config.is_causal else [[4, 5, 6, 7], [8, 9, 14]]
    for where in kinds_of(model):
        changes = {each: {(*where, HEAD): change} for each, change in EVERY.items()}
        with uwaga.edit(model, **changes):
            new = generate(model, prompts, max_new_tokens=6, eos_token_ids=())
        for prompt, written in zip(prompts, new, strict=True):
            text = list(prompt) if model.config.is_causal else [model.config.decoder_start_token_id]
            for token in written:
                with uwaga.edit(model, _reached(changes, len(text), len(prompt))):
                    ids = torch.tensor([text])
                    given = (ids,) if model.config.is_causal else (torch.tensor([prompt]), ids)
                    assert int(model(*given).logits[0, -1].argmax()) == token
                text.append(token)


def _reached(changes: dict, queries: int, keys: int) -> uwaga.Edits:
    """The changes without the positions that a text of so few tokens does not have, which would be an error."""
    (where,) = changes["heads"]
    most_keys = queries if where[0] == "decoder" else keys
    queries = keys if where[0] == "encoder" else queries

    def links(given: uwaga.Links) -> uwaga.Links:
        return uwaga.Links(
            [i for i in given.queries if i < queries], [j for j in given.keys if j < most_keys], given.factor
        )

    patches = [
        each
        for each in changes["patch"][where]
        if each.positions[0] < (most_keys if each.operand == "key" else queries)
    ]
    return uwaga.Edits(
        heads=changes["heads"],
        scores={where: links(changes["scores"][where])},
        weights={where: links(changes["weights"][where])},
        patch={where: patches} if patches else {},
    )


@torch.no_grad()
def test_ragged_texts_are_edited_as_each_alone() -> None:
    model = bert()
    where = ("encoder", 1, HEAD)
    changes = {name: {where: change} for name, change in EVERY.items()}
    texts = [[4, 5, 6, 7], [8, 9, 10, 11, 12]]
    with uwaga.edit(model, **changes):
        result = model(ragged(texts)).last_hidden_state.to_list()
        alone = [model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    assert all(torch.equal(one, other) for one, other in zip(result, alone, strict=True))


@torch.no_grad()
def test_the_mean_is_that_of_the_tokens_without_padding() -> None:
    model = bert()
    texts, outputs = [[4, 5, 6, 7], [8, 9]], []
    padded, lengths = torch.tensor([[4, 5, 6, 7], [8, 9, 0, 0]]), torch.tensor([4, 2])

    def noted(heads: uwaga.Ragged) -> uwaga.Ragged:
        outputs.append(heads.values)  # (N, H, E)
        return heads

    with changed_heads(layer_of(model, ("encoder", 1)), noted):
        model(ragged(texts))
    mean = outputs[0][:, HEAD].mean(0)
    for inputs in (
        {"ids": ragged(texts)},
        {"ids": padded, "lengths": lengths},
        {"ids": padded, "attention_mask": padded > 0},
    ):
        results = []
        for value in ("mean", mean):
            with uwaga.edit(model, heads={("encoder", 1, HEAD): value}):
                results.append(model(**inputs).last_hidden_state)
        results = [x.values if isinstance(x, uwaga.Ragged) else x[lengths[:, None] > torch.arange(4)] for x in results]
        torch.testing.assert_close(*results)


@torch.no_grad()
def test_nothing_remains_after_an_exception_or_of_nested_blocks() -> None:
    model = gpt2()
    before, outer = run(model), {("decoder", 0, 0): 2.0}
    with pytest.raises(RuntimeError, match="in the block"), uwaga.edit(model, heads=outer):
        raise RuntimeError("in the block")
    assert not threads.any_open
    with uwaga.edit(model, heads=outer):
        once = run(model)
        with uwaga.edit(model, heads={("decoder", 0, 0): 3.0}):
            twice = run(model)
        assert torch.equal(run(model), once)
    assert torch.equal(run(model), before)
    with uwaga.edit(model, heads={("decoder", 0, 0): 6.0}):
        assert torch.equal(run(model), twice)


@torch.no_grad()
def test_two_models_keep_their_own_changes() -> None:
    model, other = gpt2(), gpt2()
    results = []
    for changed, head in ((model, 0), (other, 1)):
        with uwaga.edit(changed, heads={("decoder", 0, head): 0.0}):
            results.append(run(changed))
    with uwaga.edit(model, heads={("decoder", 0, 0): 0.0}), uwaga.edit(other, heads={("decoder", 0, 1): 0.0}):
        assert torch.equal(run(model), results[0])
        assert torch.equal(run(other), results[1])


def test_gradients_reach_everything_but_what_was_replaced() -> None:
    model = gpt2()
    layer = layer_of(model, ("decoder", 2))
    with uwaga.edit(model, heads={("decoder", 2, HEAD): 0.0}, scores={("decoder", 2, 0): uwaga.Links(None, 0)}):
        run(model).square().sum().backward()
    values = layer.value.weight.grad.unflatten(0, (2, -1))
    assert torch.equal(values[HEAD], torch.zeros_like(values[HEAD]))
    assert values[1 - HEAD].abs().sum() > 0


@torch.no_grad()
def test_edits_read_from_json_do_the_same() -> None:
    model = gpt2()
    edits = uwaga.Edits(
        heads={("decoder", 0, 1): 0.0, ("decoder", 1, 0): "mean"},
        scores={("decoder", 1, None): [uwaga.Links([3], None), uwaga.Links(None, [1])]},
        weights={("decoder", 2, 0): uwaga.Links([2, 4], 0, factor=0.5)},
    )
    read = uwaga.Edits.from_dict(json.loads(json.dumps(edits.to_dict())))
    assert read.to_dict() == edits.to_dict()
    assert repr(read) == repr(edits)
    results = []
    for each in (edits, read):
        with uwaga.edit(model, each) as inside:
            results.append(run(model))
        assert inside is each
    line = read.as_python("model")
    scope: dict[str, object] = {"uwaga": uwaga, "model": model, "run": run}
    exec(f"{line}\n    found = run(model)", scope)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], scope["found"])


@pytest.mark.parametrize("operand", ["query", "key", "value", "output"])
@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_a_patch_of_a_recording_puts_the_vectors_of_another_text_there(name: str, operand: str) -> None:
    model, chosen = ALL[name](), [1, 3]
    with uwaga.watch(model, values=True) as other:
        run(model, IDS.flip(-1))
    for where in kinds_of(model):
        patch = uwaga.Patch.of(other, operand, (*where, HEAD), chosen)
        edited = uwaga.edit(model, patch={(*where, HEAD): patch})
        # Of two contexts the inner one comes first at the operands and last at the results.
        outer, inner = (edited, nullcontext()) if operand == "output" else (nullcontext(), edited)
        with outer, activations(model) as result, inner:
            run(model)
        with activations(model) as expected:
            run(model, IDS.flip(-1))
        now, then = (getattr(each[where], operand)[:, HEAD, chosen] for each in (result, expected))
        assert torch.equal(now, patch.source)
        # Of the same text in another pass, whose layers may be computed one by one.
        torch.testing.assert_close(patch.source, then, rtol=1e-5, atol=1e-6)
