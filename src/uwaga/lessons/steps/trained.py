"""What training makes of the blocks: a decoder that copies, and one layer of a real model over a real sentence.

Letters: H heads, N tokens read, T tokens written, M width, S signs or distinct words, K tokens of the stored sentence.
"""

import functools
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import torch
from safetensors.torch import load
from torch import Tensor, nn

from uwaga.lessons.compute import dense, projected, scores
from uwaga.lessons.document import Illustration, LessonStep, Section, shown
from uwaga.lessons.example import START
from uwaga.lessons.matrix import made
from uwaga.lessons.page import Page
from uwaga.lessons.question import largest, names_of, question, which_token
from uwaga.maps.map import AttentionMap
from uwaga.nn import Decoder, DecoderLayer, Encoder, LayerSpec, SinusoidalPositions
from uwaga.ops.linear.api import linear
from uwaga.ops.masks import Causal

SIGNS, WIDTH, HEADS = 12, 16, 1
_START = 0  # the sign before the first word


class Copyist(nn.Module):
    """One encoder block and one decoder block, pre-norm, with one embedding for what is read, what is written and the output.

    `python recipes/lesson_copyist.py` trained it to copy, and wrote copyist.safetensors. A word is one of twelve signs, by its first
    place in the sentence, so that any sentence of the lesson can be copied.
    """

    def __init__(self) -> None:
        super().__init__()
        spec = LayerSpec(d_model=WIDTH, num_heads=HEADS, d_ff=2 * WIDTH, norm="pre", activation="relu")
        self.embedding = nn.Embedding(SIGNS + 1, WIDTH)
        self.positions = SinusoidalPositions(WIDTH)
        self.encoder, self.decoder = Encoder(spec, 1), Decoder(spec, 1)

    def read(self, signs: Tensor) -> Tensor:
        """Return the encoder's output (..., N, M) for signs (..., N)."""
        memory = self.encoder(self.positions(self.embedding(signs)))
        assert isinstance(memory, Tensor)
        return memory

    def write(self, signs: Tensor, memory: Tensor) -> Tensor:
        """Return scores (..., T, S) of the sign that follows each of (..., T) signs; the first one is the start sign."""
        output = self.decoder(self.positions(self.embedding(signs)), memory, mask=Causal())
        logits = linear(output, self.embedding.weight)
        assert isinstance(logits, Tensor)
        return logits


class Copied(NamedTuple):
    """What the model wrote, and how."""

    written: tuple[str, ...]  # N words, by the largest score at each place
    words: tuple[str, ...]  # distinct, S of them
    logits_NS: Tensor  # scores of the words after each prefix
    scores_NN: Tensor  # of cross-attention, scaled: a row for each word written, a column for each word read
    weights_NN: Tensor


@functools.cache
def trained() -> Copyist:
    """Return the stored model."""
    model = Copyist()
    model.load_state_dict(
        load(resources.files("uwaga.lessons").joinpath("copyist.safetensors").read_bytes()), strict=True
    )
    return model.eval()


@torch.no_grad()
def copy(tokens: Sequence[str]) -> Copied:
    """Let the model read at most SIGNS tokens, and write as many words, each from those that it has written itself."""
    model, words = trained(), tuple(dict.fromkeys(tokens))
    memory = model.read(torch.tensor([words.index(token) + 1 for token in tokens]))
    signs = [_START]
    for _ in tokens:
        logits = model.write(torch.tensor(signs), memory)[:, 1 : len(words) + 1]
        signs.append(int(logits[-1].argmax()) + 1)
    layer = model.decoder.layers[0]
    assert isinstance(layer, DecoderLayer)
    x = model.positions(model.embedding(torch.tensor(signs[:-1])))
    attended = x + layer.attention(layer.attention_norm(x), mask=Causal())
    queries, keys, _ = projected(layer.cross_attention, layer.cross_attention_norm(attended), memory)
    scale = 1.0 / math.sqrt(layer.cross_attention.d_k)
    weights = AttentionMap(queries, keys, scale=scale)
    scores_NN = scores(queries, keys) * scale
    return Copied(tuple(words[sign - 1] for sign in signs[1:]), words, logits, scores_NN, dense(weights))


def copying(page: Page) -> LessonStep:
    """Return an encoder and a decoder that were trained to copy write the sentence that they have read."""
    tokens, n = page.example.tokens, len(page.example.tokens)
    copied = copy(tokens)
    before = (START, *copied.written[:-1])
    rows = [f"{place + 1}: {word}" for place, word in enumerate(before)]
    columns = [f"{place + 1}: {word}" for place, word in enumerate(tokens)]
    scored = made(copied.scores_NN, rows, columns, page.stated("scores_are"))
    scaled = page.matrix("copy_scores", scored, width=WIDTH // HEADS)
    weights = page.matrix("copy_weights", scaled.softmax().by_library(copied.weights_NN))
    logits = page.matrix("copy_logits", made(copied.logits_NS, rows, copied.words, page.stated("logits_are")))
    chances = page.matrix("copy_next", logits.softmax())
    share = shown(weights.numbers.diagonal().mean())
    diagonal = page.finding("diagonal", [(weights.id, i, i) for i in range(n)], share=share, chance=shown(1 / n))
    written = page.finding(
        "written",
        [(chances.id, i, copied.words.index(word)) for i, word in enumerate(copied.written)],
        written=" ".join(copied.written),
        right=sum(a == b for a, b in zip(copied.written, tokens, strict=True)),
        n=n,
    )
    i = min(2, n - 1)
    return page.step(
        page.section("looks", scaled, weights, findings=(diagonal,)),
        page.section("next", logits, chances, findings=(written,)),
        values={"most": SIGNS},
        pictures=(
            page.picture(
                "ribbons", "word_by_word", weights, description=page.text("above_below"), labels=copied.written
            ),
        ),
        question=which_token(
            page,
            weights,
            i,
            ("copy_scores", "copy_weights", "copy_logits", "copy_next"),
            tapped=True,
            before=" ".join(before[: i + 1]),
        ),
        code="decoder(positions(embedding(written)), encoder(positions(embedding(read))), mask=uwaga.Causal())",
    )


@functools.cache
def _sentence() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(resources.files("uwaga.lessons").joinpath("sentence.json").read_text("utf-8"))
    return stored


# The head of the stored layer that follows what a pronoun means, and the token "it".
POINT = (1, 10)


def real_model(page: Page) -> LessonStep:
    stored, (head, asks) = _sentence(), POINT
    tokens, weights_HKK = stored["tokens"], torch.tensor(stored["weights"])
    assert tokens[asks] == "it"
    recorded = page.stated("recorded", model=stored["model"])
    matrix = page.matrix(
        "real_weights",
        made(weights_HKK, tokens, tokens, recorded, shade="share"),
        layer=stored["layer"],
        heads=len(weights_HKK),
        model=stored["model"],
    )
    row, names = weights_HKK[head, asks], names_of(page, tokens)
    right = largest(row)
    pairs = stored["pairs"] | {name: shown(stored["pairs"][name]) for name in ("shift", "moves")}
    return page.step(
        _word_changed(page, stored),
        values=pairs | {"model": stored["model"]},
        pictures=(
            Illustration(
                kind="arcs",
                title=matrix.title,
                description=page.text("slider"),
                matrices=(matrix,),
                labels=[page.text("head", head=h) for h in range(len(weights_HKK))],
                sizes=(POINT,),
            ),
        ),
        question=question(
            page,
            ("real_weights",),
            (("real_weights", asks, right[0]),),
            names,
            right,
            asks={"head": head, "token": tokens[asks]},
            why={"token": names[right[0]], "number": shown(row[right[0]])},
            ordered=True,
            tap="real_weights",
        ),
        code="with uwaga.watch(model) as recording: model(ids)",
    )


def _word_changed(page: Page, stored: dict[str, Any]) -> Section:
    """Return the weights of "it" in the sentence, and in one with another last word. With that word "it" stands for the
    street."""
    head, asks = POINT
    tokens, (word, other) = list(stored["tokens"]), stored["words"]
    weights_2K = torch.tensor([stored["weights"][head][asks], stored["changed"]])
    meant, also, most = tokens.index("animal"), tokens.index("street"), int(weights_2K[1].argmax())
    rows = [f"{tokens[asks]} … {last}" for last in (word, other)]
    columns = [f"{word} / {other}" if token == word else token for token in tokens]
    recorded = page.stated("recorded", model=stored["model"])
    matrix = page.matrix("real_words", made(weights_2K, rows, columns, recorded, shade="none"), h=head)
    finding = page.finding(
        "changed",
        [(matrix.id, row, column) for row in (0, 1) for column in (meant, also)],
        other=other,
        word=word,
        token=tokens[asks],
        meant=tokens[meant],
        also=tokens[also],
        before=shown(weights_2K[1, meant]),
        first=shown(weights_2K[0, meant]),
        after=shown(weights_2K[1, also]),
        second=shown(weights_2K[0, also]),
        most=tokens[most],
        share=shown(weights_2K[1, most]),
    )
    return page.section("one_word", matrix, told=True, values={"word": word, "other": other}, findings=(finding,))
