"""What training makes of the blocks: a decoder that copies, and one layer of a real model over a real sentence.

Letters: N tokens read, S distinct words.
"""

import functools
import json
from importlib import resources
from typing import Any

import torch

from uwaga._base.languages import tr
from uwaga.lessons import provenance
from uwaga.lessons.copyist import HEADS, SIGNS, WIDTH, copy
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import START, Example
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell


def copy_step(example: Example) -> LessonStep:
    """An encoder and a decoder that were trained to copy write the sentence that they have read."""
    tokens, n = example.tokens, len(example.tokens)
    copied = copy(tokens)
    before = (START, *copied.written[:-1])
    rows = [f"{place + 1}: {word}" for place, word in enumerate(before)]
    columns = [f"{place + 1}: {word}" for place, word in enumerate(tokens)]
    scores = Matrix(
        id="copy_scores",
        title=tr("Scores of cross-attention, scaled"),
        formula=f"qᵢ · kⱼ / √{WIDTH // HEADS}",
        rows=rows,
        columns=columns,
        numbers=copied.scores_NN,
        source=provenance.given(tr("Queries from what is written, keys from what was read, both by trained matrices.")),
    )
    weights = Matrix(
        id="copy_weights",
        title=tr("Weights of cross-attention"),
        formula=tr("softmax of each row"),
        rows=rows,
        columns=columns,
        numbers=copied.weights_NN,
        source=provenance.softmax(cell("copy_scores", "i", "j"), cell("copy_scores", "i", "m"), n),
        shade="share",
    )
    logits = Matrix(
        id="copy_logits",
        title=tr("Scores of the words"),
        formula=tr("output · the word's embedding"),
        rows=rows,
        columns=copied.words,
        numbers=copied.logits_NS,
        source=provenance.given(tr("The decoder's output times the embeddings of the words, both trained.")),
    )
    chances = Matrix(
        id="copy_next",
        title=tr("Probability of each word"),
        formula=tr("softmax of each row"),
        rows=rows,
        columns=copied.words,
        numbers=copied.logits_NS.softmax(-1),
        source=provenance.softmax(cell("copy_logits", "i", "j"), cell("copy_logits", "i", "m"), len(copied.words)),
        shade="share",
    )
    right = sum(a == b for a, b in zip(copied.written, tokens, strict=True))
    return LessonStep(
        id="copy",
        title=tr("A decoder that has learned to copy"),
        text=(
            tr(
                "The same blocks with parameters that were trained: an encoder block reads the sentence, a decoder block writes"
                " it again, word by word, each word chosen from what it has written itself. It was trained on random signs, at"
                " most {most} of them, and has never seen this sentence.",
                most=SIGNS,
            ),
        ),
        told=(
            tr(
                "Nobody told it where to look. To write a word it looks at the place read that comes next, so its"
                " cross-attention is a diagonal, and the word there is the word that follows."
            ),
        ),
        pictures=(
            Illustration(
                kind="ribbons",
                title=tr("Where it looks, word by word"),
                description=tr("Above, what it has written so far; below, what it reads."),
                matrices=(weights,),
                labels=copied.written,
            ),
        ),
        sections=(
            Section(
                title=tr("Where it looks"),
                matrices=(scores, weights),
                findings=(_on_the_diagonal(weights),),
            ),
            Section(
                title=tr("The next word"),
                matrices=(logits, chances),
                findings=(
                    LessonFinding(
                        text=tr(
                            "It writes “{written}”: {right} of {n} right.",
                            written=" ".join(copied.written),
                            right=right,
                            n=n,
                        ),
                        cells=[(chances.id, i, copied.words.index(word)) for i, word in enumerate(copied.written)],
                    ),
                ),
            ),
        ),
        code="decoder(positions(embedding(written)), encoder(positions(embedding(read))), mask=uwaga.Causal())",
    )


def _on_the_diagonal(weights: Matrix) -> LessonFinding:
    n = len(weights.rows)
    text = tr(
        "On average {share} of a word's cross-attention is on the place that comes next; by chance it would be {chance}.",
        share=shown(float(weights.numbers.diagonal().mean())),
        chance=shown(1 / n),
    )
    return LessonFinding(text=text, cells=[(weights.id, i, i) for i in range(n)])


@functools.cache
def _sentence() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(resources.files("uwaga.lessons").joinpath("sentence.json").read_text("utf-8"))
    return stored


# The head of the stored layer that follows what a pronoun means, and the token "it".
POINT = (1, 10)


def model_step() -> LessonStep:
    stored = _sentence()
    tokens, weights_HNN = stored["tokens"], torch.tensor(stored["weights"])
    assert tokens[POINT[1]] == "it"
    changed = _word_changed(stored)
    matrix = Matrix(
        id="real_weights",
        title=tr("Layer {layer}, Attention: Input - Input", layer=stored["layer"]),
        formula=tr("weights of {heads} heads, {model}", heads=len(weights_HNN), model=stored["model"]),
        rows=tokens,
        columns=tokens,
        numbers=weights_HNN,
        source=provenance.given(
            tr("Recorded by uwaga.watch in {model}, and stored with the lesson.", model=stored["model"])
        ),
        shade="share",
    )
    return LessonStep(
        id="model",
        title=tr("The same in a real model"),
        text=(
            tr(
                "A trained model is this calculation, many heads wide and many layers deep: the same operation computed the"
                " numbers of this lesson and computes its maps. What it has learned is in its W_Q, W_K, W_V and W_O."
            ),
            tr(
                "Here is one layer of {model}, which makes a vector of a sentence, on a sentence in English.",
                model=stored["model"],
            ),
        ),
        pictures=(
            Illustration(
                kind="arcs",
                title=matrix.title,
                description=tr("A slider chooses the head; tap a word to see where it looks."),
                matrices=(matrix,),
                labels=[tr("head {head}", head=h) for h in range(len(weights_HNN))],
                sizes=(POINT,),
            ),
        ),
        told=(
            tr(
                "One sentence does not say what a head does. Over {of} pairs of sentences in which one word decides what the pronoun"
                " means, this head's weight follows the meaning by {shift} on average: by {moves} or more the right way in {right}"
                " pairs, and the wrong way in {wrong}.",
                **{name: stored["pairs"][name] for name in ("of", "right", "wrong")},
                shift=shown(stored["pairs"]["shift"]),
                moves=shown(stored["pairs"]["moves"]),
            ),
        ),
        sections=(changed,),
        code="with uwaga.watch(model) as recording: model(ids)",
    )


def _word_changed(stored: dict[str, Any]) -> Section:
    """The weights of "it" in the sentence, and in the one with another last word, with which "it" stands for the street."""
    head, asks = POINT
    tokens, (word, other) = list(stored["tokens"]), stored["words"]
    weights_2K = torch.tensor([stored["weights"][head][asks], stored["changed"]])
    meant, also = tokens.index("animal"), tokens.index("street")
    matrix = Matrix(
        id="real_words",
        title=tr("Weights of head {h}", h=head),
        formula=tr("softmax of each row"),
        rows=[f"{tokens[asks]} … {last}" for last in (word, other)],
        columns=[f"{word} / {other}" if token == word else token for token in tokens],
        numbers=weights_2K,
        source=provenance.given(
            tr("Recorded by uwaga.watch in {model}, and stored with the lesson.", model=stored["model"])
        ),
        shade="none",
    )
    most = int(weights_2K[1].argmax())
    text = tr(
        "With “{other}” instead of “{word}”, “{token}” means “{also}”. The head then gives “{meant}” {before} instead of {first}, and"
        " “{also}” {after} instead of {second}: the right way, but not far enough. The largest weight is that of “{most}”: {share}.",
        other=other,
        word=word,
        token=tokens[asks],
        meant=tokens[meant],
        also=tokens[also],
        before=shown(float(weights_2K[1, meant])),
        first=shown(float(weights_2K[0, meant])),
        after=shown(float(weights_2K[1, also])),
        second=shown(float(weights_2K[0, also])),
        most=tokens[most],
        share=shown(float(weights_2K[1, most])),
    )
    cells = [(matrix.id, row, column) for row in (0, 1) for column in (meant, also)]
    return Section(
        title=tr("One word changed: “{word}” to “{other}”", word=word, other=other),
        told=True,
        matrices=(matrix,),
        findings=(LessonFinding(text=text, cells=cells),),
    )
