"""Masks: which keys each query can see. Letters: N tokens, E width of values."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga._base.languages import percent, tr, tr_n
from uwaga.lessons import provenance
from uwaga.lessons.compute import OneHead, dense
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Matrix, Section, shown
from uwaga.lessons.example import Example
from uwaga.lessons.provenance import cell
from uwaga.maps.attended import attend
from uwaga.ops.masks import Causal, KeyLengths, Mask, Window
from uwaga.ops.score_shape import ScoreShape


def step(example: Example, head: OneHead) -> LessonStep:
    window, length = example.window, example.length
    causal = _section(
        example,
        head,
        "causal",
        Causal(),
        tr("Causal: itself and the tokens before"),
        tr("1 where the key's place is at most the query's own"),
        tr("A language model generates from left to right: no token may see a later one."),
    )
    return LessonStep(
        id="masks",
        title=tr("Masks: which keys a query sees"),
        text=(
            tr(
                "A mask hides keys from queries: their scores are left out of the row's softmax. So the weights on hidden keys"
                " are 0, and those on the others sum to 1."
            ),
            tr("The library uwaga skips hidden scores: they are not computed."),
        ),
        pictures=(Illustration(kind="arcs", title=causal.title, matrices=(causal.matrices[2],)),),
        sections=(
            causal,
            _section(
                example,
                head,
                "past",
                Causal(include_self=False),
                tr("Strictly past: only the tokens before"),
                tr("1 where the key's place is before the query's own"),
                tr("A token does not see itself, so that what it answers cannot be copied from its own record."),
            ),
            _section(
                example,
                head,
                "window",
                Window(window, 0),
                _window_title(window),
                tr("1 where the key is the query's own place or up to {window} before it", window=window),
                tr(
                    "Distant keys are hidden; through several layers, information still passes over more than one window."
                ),
                controls=("window",),
                folded=True,
            ),
            _section(
                example,
                head,
                "lengths",
                KeyLengths(torch.tensor(length)),
                tr("Key lengths: the first {length}, the rest is padding", length=length),
                tr("1 for the first {length} keys", length=length),
                tr("In a padded batch, the places after the end of a sentence hold padding; no query may see it."),
                controls=("length",),
                folded=True,
            ),
        ),
        code=f"uwaga.attention(q, k, v, mask=uwaga.Causal(include_self=False){example.scale_argument})",
        head={
            "statistic": "previous_token",
            "sense": "largest",
            "why": tr("the head with the most weight on the token before the query"),
        },
    )


def past_bits(made: LessonStep) -> Matrix:
    """Which keys are visible under the strictly past mask."""
    return next(each for section in made.sections for each in section.matrices if each.id == "past_bits")


def _section(
    example: Example,
    head: OneHead,
    id: str,
    mask: Mask,
    title: str,
    rule: str,
    text: str,
    controls: Sequence[str] = (),
    *,
    folded: bool = False,
) -> Section:
    tokens, n = example.tokens, len(example.tokens)
    bits_NN = mask.dense(ScoreShape(queries=n, keys=n))[0, 0].expand(n, n)
    output_NE, _, weights = attend(head.q_ND, head.k_ND, head.v_NE, mask=mask, scale=head.scale)
    assert isinstance(output_NE, Tensor)
    bits, scores, shares = f"{id}_bits", f"{id}_scores", f"{id}_weights"
    made = (
        _square(tokens, bits, tr("Visible"), rule, bits_NN.float(), provenance.given(rule), "bits"),
        _square(
            tokens,
            scores,
            tr("Scores that count"),
            tr("s(i, j) where visible"),
            torch.where(bits_NN, head.scores_NN * head.scale, torch.nan),
            provenance.masked(cell("scaled", "i", "j"), cell(bits, "i", "j")),
            "signed",
        ),
        _square(
            tokens,
            shares,
            tr("Weights"),
            tr("softmax over the visible"),
            dense(weights),
            provenance.softmax(cell(scores, "i", "j"), cell(scores, "i", "m"), n),
            "share",
        ),
        Matrix(
            id=f"{id}_output",
            title=tr("Output"),
            formula="Σⱼ a(i, j) vⱼ",
            rows=tokens,
            columns=[f"v{e + 1}" for e in range(output_NE.shape[1])],
            numbers=output_NE,
            source=provenance.dot(cell(shares, "i", "m"), cell("v", "m", "j"), n),
        ),
    )
    finding = _finding(tokens, bits_NN, made[2])
    return Section(
        title=title,
        text=(text,),
        matrices=made,
        findings=(finding,),
        controls=controls,
        folded=folded,
    )


def _square(
    tokens: Sequence[str], id: str, title: str, formula: str, numbers: Tensor, source: provenance.Rule, shade: str
) -> Matrix:
    digits = 0 if shade == "bits" else 2
    return Matrix(
        id=id,
        title=title,
        formula=formula,
        rows=tokens,
        columns=tokens,
        numbers=numbers,
        source=source,
        shade=shade,
        digits=digits,
    )


def _finding(tokens: Sequence[str], bits_NN: Tensor, weights: Matrix) -> LessonFinding:
    blind = [i for i, row in enumerate(bits_NN) if not bool(row.any())]
    if blind:
        named = ", ".join(tr("“{token}”", token=tokens[i]) for i in blind[:3])
        text = (
            tr_n(
                "{named} sees nothing: the weights sum to 0 and the output is zeros.",
                "{named} see nothing: the weights sum to 0 and the output is zeros.",
                len(blind),
                named=named,
            )
            if len(blind) <= 3
            else tr_n(
                "{count} token sees nothing: the weights sum to 0 and the output is zeros.",
                "{count} tokens see nothing: the weights sum to 0 and the output is zeros.",
                len(blind),
            )
        )
        cells = [(weights.id, i, j) for i in blind for j in range(len(tokens))]
        return LessonFinding(text=text, cells=cells)
    hidden, pairs = int((~bits_NN).sum()), bits_NN.numel()
    # A row with hidden keys and visible ones: where either are missing there is nothing to see.
    row = int((bits_NN.sum(-1) * (~bits_NN).sum(-1)).argmax())
    text = tr(
        "{hidden} of {pairs} pairs are hidden, {hidden2} of the work. The row of “{tokens}” still sums to {sum}.",
        hidden=hidden,
        pairs=pairs,
        hidden2=percent(hidden / pairs),
        tokens=tokens[row],
        sum=shown(float(weights.numbers[row].sum())),
    )
    return LessonFinding(text=text, cells=[(weights.id, row, j) for j in range(len(tokens))])


def _window_title(window: int) -> str:
    if window == 0:
        return tr("Window(0, 0): itself and nothing else")
    return tr_n(
        "Window({count}, 0): itself and the one before", "Window({count}, 0): itself and the {count} before", window
    )
