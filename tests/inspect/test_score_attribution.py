"""Scores as sums of what pairs of parts contribute: models of every shape, brute force in float64, known circuits.

Letters: N tokens, M model width, H heads, D head width, P and S parts of the query and the key.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from tiny_models import DECODERS, ENCODERS, PAIRS, make, small
from tiny_transformer import NARROW, drawn, made, tiny
from tolerance import assert_as_exact, once
from torch import Tensor, nn

import uwaga
from uwaga.inspect import Part, activations, score_attribution
from uwaga.models.checkpoints.rope_parameters import Rope

IDS = torch.tensor([[4, 5, 6, 7, 8, 4, 5], [9, 10, 11, 12, 13, 9, 10]])
SHORT = IDS[:, :4]
_THREE = NARROW | {"num_layers": 3, "max_position_embeddings": 40}
_ROPES = {"ropes": (Rope(100.0),) * 3}


def rotary(model_type: str, **options: object) -> nn.Module:
    return drawn(tiny(model_type, **_THREE | _ROPES | {"num_kv_heads": 1, "d_k": 4} | options))


def of_bert(model_type: str, **options: object) -> nn.Module:
    return drawn(tiny(model_type, outputs=(), **_THREE | options))


def alibi(**options: object) -> nn.Module:
    sizes = NARROW | {"num_layers": 0, "num_decoder_layers": 3, "position_encoding": "alibi", "norm": "pre"}
    return drawn(tiny("uwaga-transformer", **sizes | options))


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(made, name) for name in ("gpt2", "gpt2 banded", "bert", "t5", "transformer", "pre-norm")},
    "roberta": lambda: of_bert("roberta", pad_token_id=1),
    "distilbert": lambda: of_bert("distilbert"),
    "mpnet": lambda: of_bert("mpnet", pad_token_id=1),
    "albert": lambda: of_bert("albert", embedding_size=6),
    "nomic": lambda: of_bert("nomic_bert", **_ROPES),
    "llama": lambda: rotary("llama"),
    "qwen2": lambda: rotary("qwen2"),
    "qwen3": lambda: rotary("qwen3"),
    "gemma2": lambda: rotary("gemma2", softcap=2.0, scale=0.5, windows=(None,) * 3),
    "gemma3": lambda: rotary("gemma3_text", scale=0.5, windows=(3, None, 3)),
    "modernbert": lambda: drawn(tiny("modernbert", windows=(None, 2, None), norm_bias=True, pad_token_id=None, **_THREE, **_ROPES)),
    "alibi": alibi,
}  # fmt: skip


@torch.no_grad()
def recorded(model: nn.Module) -> tuple[uwaga.Recording, list[str]]:
    """A recording, and the kinds of its attention."""
    with uwaga.watch(model, values=True) as recording:
        model(*((IDS, SHORT) if model.config.has_both else (IDS,)))
    return recording, sorted({kind for kind, _ in recording.maps})


IN_GATE = ("gpt2", "bert", "t5", "llama", "gemma2", "modernbert", "alibi")


@pytest.mark.gate(only=lambda name: name in IN_GATE)
@pytest.mark.parametrize("name", MODELS)
def test_parts_sum_to_the_score_within_the_bound(name: str) -> None:
    """In float64 and in float32, of every kind, layer and head, at cells near and far."""
    for model in (MODELS[name]().double(), MODELS[name]()):
        recording, kinds = recorded(model)
        for kind, layer, head in product(kinds, range(2 if model.config.has_both else 3), range(2)):
            result = score_attribution(model, recording, layer, head, [3, 3, 2], [3, 2, 1], kind=kind, row=1)
            assert (result.bound() < 0.01).all()
            assert ((result.total() - result.scores).abs() <= result.bound()).all()
            torch.testing.assert_close(result.shares().sum() + result.distance.mean(), result.total().mean())
            assert len(result.query_parts) > layer
            assert result.query_parts[0] == Part("token")


@pytest.mark.gate(only=lambda name: name in IN_GATE)
@pytest.mark.parametrize("name", MODELS)
def test_a_head_s_share_is_that_of_the_tokens_it_was_brought_from_and_theirs_that_of_their_parts(name: str) -> None:
    model = MODELS[name]().double()
    recording, kinds = recorded(model)
    exactly = {"rel_tol": 1e-9, "abs_tol": 1e-12}
    for kind, than in product(kinds, (None, 3)):
        one = score_attribution(model, recording, 1, 1, 3, 2, kind=kind, than=than)
        assert ((one.total() - one.scores).abs() <= one.bound()).all()
        sides = (("query", one.query_parts, one.shares()), ("key", one.key_parts, one.shares().T))
        for (side, parts, of_parts), (_, others, _) in zip(sides, sides[::-1], strict=True):
            heads = [n for n, part in enumerate(parts) if part.name == "head" and part.head == 1]
            assert heads
            for n in heads:
                assert math.isclose(one.sources(parts[n], side).sum(), of_parts[n].sum(), **exactly)
                sources = one.back(parts[n], side, others[-1], top=99, parts=99)
                assert math.isclose(sum(source.share for source in sources), of_parts[n][-1], **exactly)
                for source in sources:
                    assert math.isclose(sum(x for _, x in source.parts), source.share, **exactly)


def rotation(position: int, width: int, base: float) -> Tensor:
    """(D, D): Su et al. 2021, equation 15, of pairs i and i + D / 2."""
    result, half = torch.zeros(width, width, dtype=torch.float64), width // 2
    for i in range(half):
        angle = position * base ** (-2 * i / width)
        result[i, i] = result[i + half, i + half] = math.cos(angle)
        result[i + half, i], result[i, i + half] = math.sin(angle), -math.sin(angle)
    return result


def norm_matrix(norm: nn.Module, x_M: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix (M, M) and the constant (M,) that a norm is at x."""
    width = len(x_M)
    eye, zeros = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    if isinstance(norm, nn.Identity):
        return eye, zeros
    factor = norm.factor() if hasattr(norm, "factor") else norm.weight
    if isinstance(norm, nn.RMSNorm):
        return torch.diag(factor) / (x_M.square().mean() + norm.eps).sqrt(), zeros
    centre = eye - 1 / width
    sigma = ((centre @ x_M).square().mean() + norm.eps).sqrt()
    return torch.diag(factor) @ centre / sigma, zeros if norm.bias is None else norm.bias


def brute_force(
    model: nn.Module, kind: str, row: int, layer: int, head: int, i: int, j: int, split: tuple[int, int] | None = None
) -> dict[tuple[str, str], float]:
    """The contribution of each pair by explicit matrices, from what hooks see of each module.

    split: a layer and a head whose output is a part for each token that it looks at, "from 0" and so on.
    """
    layers = (model.encoder or model.decoder).layers
    seen: dict[int, Tensor] = {}
    hooks = [
        block.feed_forward.register_forward_hook(lambda _, __, output, n=n: seen.__setitem__(n, output[row]))
        for n, block in enumerate(layers)
    ]
    with activations(model) as heads:
        model(IDS)
    for hook in hooks:
        hook.remove()
    sides: list[dict[str, Tensor]] = []
    for token, name in ((i, "query"), (j, "key")):
        parts = embeddings(model, token, row)
        for n, block in enumerate(layers[: layer + 1]):
            norms = [block.attention_norm, block.feed_forward_norm]
            added: list[dict[str, Tensor]] = [{}, {f"feed-forward {n}": seen[n][token]}]
            for h, z_E in enumerate(heads[kind, n].output[row, :, token]):
                width = len(z_E)
                output_ME = block.attention.output.weight[:, h * width : (h + 1) * width]
                if (n, h) == split:
                    group = h * block.attention.num_kv_heads // block.attention.num_heads
                    a_N = heads[kind, n].map().to_dense()[row, h, token]
                    for t, v_E in enumerate(heads[kind, n].value[row, group]):
                        added[0][f"from {t}"] = output_ME @ (a_N[t] * v_E)
                else:
                    added[0][f"head {n}.{h}"] = output_ME @ z_E
            bias = block.attention.output.bias
            added[0]["bias"] = torch.zeros(8, dtype=torch.float64) if bias is None else bias
            for step, (more, norm) in enumerate(zip(added, norms, strict=True)):
                if block.is_pre and step == 0 and n == layer:
                    parts = through(norm, parts)
                if n == layer:
                    break
                output_norm = (block.attention_output_norm, block.feed_forward_output_norm)[step]
                for key, x in (more if output_norm is None else through(output_norm, more)).items():
                    parts[key] = parts.get(key, 0.0) + x
                parts = parts if block.is_pre else through(norm, parts)
        sides.append(project(model, layers[layer].attention, parts, name, head, token, layer))
    attention = layers[layer].attention
    scale = attention.d_k**-0.5 if attention.scale is None else attention.scale
    return {(p, s): float(q @ k) * scale for p, q in sides[0].items() for s, k in sides[1].items()}


def through(norm: nn.Module, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    matrix, constant = norm_matrix(norm, sum(parts.values()))
    result = {name: matrix @ x for name, x in parts.items()}
    return result | {"bias": result.get("bias", 0.0) + constant}


def embeddings(model: nn.Module, token: int, row: int) -> dict[str, Tensor]:
    of, scale = model.embeddings, 8**0.5 if model.config.scale_embedding else 1.0
    parts = {"token": of.token_embedding.weight[IDS[row, token]] * scale}
    if of.token_types is not None:
        parts["type"] = of.token_types.weight[0]
    if of.positions is not None:
        parts["position"] = of.positions.weight[token]
    return parts if of.norm is None else through(of.norm, parts)


def project(
    model: nn.Module, attention: nn.Module, parts: dict[str, Tensor], name: str, head: int, token: int, layer: int
) -> dict[str, Tensor]:
    linear, norm = getattr(attention, name), getattr(attention, f"{name}_norm")
    at = head if name == "query" else head * attention.num_kv_heads // attention.num_heads
    width = attention.d_k
    rows = slice(at * width, (at + 1) * width)
    result = {part: linear.weight[rows] @ x for part, x in parts.items()}
    if linear.bias is not None:
        result["bias"] = result.get("bias", 0.0) + linear.bias[rows]
    if norm is not None:
        matrix, _ = norm_matrix(norm, sum(result.values()))
        result = {part: matrix @ x for part, x in result.items()}
    if model.config.ropes:
        turned = rotation(token, width, model.config.ropes[layer].base)
        result = {part: turned @ x for part, x in result.items()}
    return result


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "qwen2", "qwen3", "gemma2", "gemma3", "modernbert", "alibi"])
@torch.no_grad()
def test_contributions_are_those_of_brute_force_with_explicit_matrices(name: str) -> None:
    model = MODELS[name]().double()
    recording, (kind,) = recorded(model)
    for layer in (0, 2):
        for head in (0, 1):
            one = score_attribution(model, recording, layer, head, 4, 3, row=1)
            right = brute_force(model, kind, 1, layer, head, 4, 3)
            right = {pair: x for pair, x in right.items() if x or "bias" not in pair}
            shares = one.shares()
            found = {
                (str(p), str(s)): float(shares[n, m])
                for n, p in enumerate(one.query_parts)
                for m, s in enumerate(one.key_parts)
            }
            assert found.keys() >= right.keys()
            for pair, share in found.items():
                assert abs(share - right.get(pair, 0.0)) <= float(one.bound()), pair
    if name == "alibi":
        slope = 2.0 ** (-8 * (head + 1) / 2)
        assert float(one.distance) == -slope


@pytest.mark.gate(only=lambda name: name in ("bert", "llama", "alibi"))
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "qwen3", "gemma2", "alibi"])
@torch.no_grad()
def test_what_a_head_brought_from_each_token_is_that_of_brute_force(name: str) -> None:
    model = MODELS[name]().double()
    recording, (kind,) = recorded(model)
    one = score_attribution(model, recording, 2, 1, 5, 4, row=1)
    rather = score_attribution(model, recording, 2, 1, 5, 4, than=3, row=1)
    for source in ((0, 1), (1, 0)):
        part = Part("head", kind, *source)
        right, other = (brute_force(model, kind, 1, 2, 1, 5, j, split=source) for j in (4, 3))
        for at in range(7):
            of_query = right[f"from {at}", "token"]
            assert abs(float(one.sources(part, "query", Part("token"))[at]) - of_query) <= float(one.bound())
            of_key = sum(x for (_, key), x in right.items() if key == f"from {at}")
            assert abs(float(one.sources(part, "key")[at]) - of_key) <= float(one.bound())
            of_other = sum(x for (_, key), x in other.items() if key == f"from {at}")
            assert abs(float(rather.sources(part, "key")[at]) - (of_key - of_other)) <= float(rather.bound())


_TEXT = "We hold these truths: a cat sat on the mat, and the dog barked at a cat that sat on the mat. We hold these truths again."


@pytest.mark.parametrize(("name", "layers"), [("minilm", (5,)), ("copyist", (1,))])
@torch.no_grad()
def test_real_models_err_no_more_than_float32_arithmetic_does(name: str, layers: tuple[int, ...]) -> None:
    model = uwaga.models.load(name)
    exact = copy.deepcopy(model).double()
    ids = torch.tensor([uwaga.models.tokenizer(model).encode(_TEXT).ids[:40]])
    queries, keys = zip(*[(i, j) for i in range(1, ids.shape[1], 3) for j in range(0, i, 4)], strict=True)
    with uwaga.watch(model, values=True) as recording:
        model(ids)

    def right() -> dict:
        with uwaga.watch(exact) as again:
            exact(ids)
        return dict(again.maps)

    maps = once(right)
    for layer in layers:
        for head in (0, 3):
            result = score_attribution(model, recording, layer, head, list(queries), list(keys))

            def of_float64(
                where: tuple[str, int] = (result.kind, layer), head: int = head, scale: float = result.scale
            ) -> Tensor:
                m = maps()[where]
                group = head * m.key.shape[1] // m.query.shape[1]
                return (m.query[0, head, list(queries)] * m.key[0, group, list(keys)]).sum(-1) * scale

            without = result.distance
            assert_as_exact((result.total() - without).float(), (result.scores - without).float(), of_float64)
            assert ((result.total() - result.scores).abs() <= result.bound()).all()


_OF_TRANSFORMERS = ["bert", "roberta", "camembert", "xlm-roberta", "electra", "distilbert", "modernbert", "eurobert", "gpt2", "llama",
                    "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "t5", "mt5", "marian"]  # fmt: skip


@pytest.mark.gate(only=lambda name: name in (*IN_GATE, "marian"))
@pytest.mark.parametrize("name", _OF_TRANSFORMERS)
@torch.no_grad()
def test_models_of_transformers_are_read_in_memory(name: str) -> None:
    import transformers

    configs = {**ENCODERS, **DECODERS, **PAIRS, "qwen3": DECODERS["llama"] | {"head_dim": 8}, "eurobert": small("eurobert") | {"mask_token_id": 3},
             "marian": PAIRS["bart"]}  # fmt: skip
    maker = transformers.AutoModelForSeq2SeqLM if name == "marian" else transformers.AutoModel
    model = make(name, configs.get(name) or small(name), maker)
    for part in model.modules():
        if hasattr(part, "create_weight"):  # Marian's sinusoids, which are computed
            part.weight.copy_(part.create_weight())
    is_pair = name in ("t5", "mt5", "marian")
    inputs = {"input_ids": IDS, **({"decoder_input_ids": SHORT} if is_pair else {})}
    with uwaga.watch(model, values=True) as recording:
        model(**inputs)
    for kind in sorted({kind for kind, _ in recording.maps}):
        for layer in range(2):
            result = score_attribution(model, recording, layer, 3, [3, 2], [2, 1], kind=kind, row=1)
            assert (result.bound() < 0.1 * result.scores.abs().amax().clamp(min=1)).all()
            assert ((result.total() - result.scores).abs() <= result.bound()).all()
