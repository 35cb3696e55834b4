"""Learning: W_Q, W_K and W_V moved by gradient steps until each token names the word before it.

The task reads the sentence alone: queries and keys come from position codes P, values from the words. Each value is a row of
scores over the words, so that an output is too, and its softmax is compared with the word that comes before (cross-entropy).

Letters: N tokens, C distinct words, W width of the codes and of queries and keys.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from uwaga._base.languages import tr, tr_n
from uwaga.lessons import provenance
from uwaga.lessons.compute import scores, unnormalised
from uwaga.lessons.document import Chart, Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import Example, numbered
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.provenance import cell
from uwaga.nn import SinusoidalPositions
from uwaga.ops.attention.api import attention

_WIDTH = 8
_AHEAD = 100  # steps that the chart shows, at least; as many are recorded
_START_QK, _START_V = 0.5, 3.0  # spread of W_Q and W_K, diagonal of W_V


class TrainingTask(NamedTuple):
    """The numbers that a sentence gives."""

    words: tuple[str, ...]  # distinct
    codes_NW: Tensor
    words_NC: Tensor  # one-hot
    before_N: Tensor  # the word before each token; the first token's own


class State(NamedTuple):
    """The three matrices, and what they give."""

    wq_WW: Tensor
    wk_WW: Tensor
    wv_CC: Tensor
    loss: float
    right: int  # tokens whose largest output is the word before them
    gradients: tuple[Tensor, Tensor, Tensor]
    weights_NN: Tensor


@functools.lru_cache(maxsize=16)
def task_of(tokens: tuple[str, ...]) -> TrainingTask:
    words = tuple(dict.fromkeys(tokens))
    ids_N = torch.tensor([words.index(token) for token in tokens])
    before_N = torch.cat((ids_N[:1], ids_N[:-1]))
    codes_NW = SinusoidalPositions(_WIDTH).table(len(tokens))
    return TrainingTask(words, codes_NW, one_hot(ids_N, len(words)).float(), before_N)


def state_of(task: TrainingTask, wq_WW: Tensor, wk_WW: Tensor, wv_CC: Tensor) -> State:
    """The loss of three matrices, and its gradients by autograd."""
    with torch.enable_grad():
        wq_WW, wk_WW, wv_CC = (each.detach().requires_grad_() for each in (wq_WW, wk_WW, wv_CC))
        q_NW, k_NW = task.codes_NW @ wq_WW, task.codes_NW @ wk_WW
        found_NC = attention(q_NW, k_NW, task.words_NC @ wv_CC)
        assert isinstance(found_NC, Tensor)
        loss = cross_entropy(found_NC, task.before_N)
        dwq_WW, dwk_WW, dwv_CC = torch.autograd.grad(loss, (wq_WW, wk_WW, wv_CC))
    weights_NN = attention(q_NW.detach(), k_NW.detach(), torch.eye(len(task.before_N)))
    assert isinstance(weights_NN, Tensor)
    right = int((found_NC.argmax(-1) == task.before_N).sum())
    gradients = (dwq_WW, dwk_WW, dwv_CC)
    return State(wq_WW.detach(), wk_WW.detach(), wv_CC.detach(), float(loss.detach()), right, gradients, weights_NN)


@functools.lru_cache(maxsize=8)
def _run(tokens: tuple[str, ...], rate: float, count: int) -> tuple[State, ...]:
    """The states after 0 to `count` steps of gradient descent."""
    task = task_of(tokens)
    generator = torch.Generator().manual_seed(0)
    wq_WW, wk_WW = (torch.randn(_WIDTH, _WIDTH, generator=generator) * _START_QK for _ in range(2))
    states = [state_of(task, wq_WW, wk_WW, torch.eye(len(task.words)) * _START_V)]
    for _ in range(count):
        last = states[-1]
        moved = (each - rate * gradient for each, gradient in zip(last[:3], last.gradients, strict=True))
        states.append(state_of(task, *moved))
    return tuple(states)


def step(example: Example) -> LessonStep:
    ahead = -(-max(example.steps, 1) // _AHEAD) * _AHEAD
    states = _run(example.tokens, example.rate, ahead)
    task, now = task_of(example.tokens), states[example.steps]
    made = _Forward(example, task, now)
    progress = _progress(example, states, made)
    return LessonStep(
        id="learning",
        title=tr("Learning: W_Q, W_K and W_V move"),
        text=(
            tr(
                "A task whose success can be seen: each token shall name the word before it (the first one, itself). Queries and"
                " keys are made from the codes of the places; a value is a score for each word."
            ),
        ),
        told=(
            tr(
                "The scores are a bilinear form of two places: P W_Q W_Kᵀ Pᵀ, n×8 · 8×8 · 8×8 · 8×n. Drag the time and watch"
                " it grow: noise at step 0, and at the end each row is largest one place back."
            ),
        ),
        pictures=(_film(example, states, progress[1].matrices[0], made),),
        sections=(
            *progress,
            Section(title=tr("What is read"), matrices=(made.codes, made.words), folded=True),
            Section(title=tr("The three matrices at this step"), matrices=(made.wq, made.wk, made.wv), folded=True),
            Section(title=tr("Attention"), matrices=(made.q, made.k, made.v, made.raw, made.scaled), folded=True),
            Section(
                title=tr("The loss"),
                matrices=(made.chances, made.wanted, made.losses, made.loss),
                findings=(_answers(example, task, made),),
                folded=True,
            ),
            _backwards(example, task, now, made),
            _after(example, states),
            _crude(example, task, made),
        ),
        code="torch.autograd.grad(torch.nn.functional.cross_entropy(uwaga.attention(P @ W_Q, P @ W_K, E @ W_V), before),"
        " (W_Q, W_K, W_V))",
    )


class _Forward:
    """The matrices from what is read to the loss, by their names in the text."""

    def __init__(self, example: Example, task: TrainingTask, now: State) -> None:
        tokens, n = example.tokens, len(example.tokens)
        width, words = numbered("p", _WIDTH), task.words
        q_names, k_names = numbered("q", _WIDTH), numbered("k", _WIDTH)
        say = tr("A number of the random start, moved by the gradient steps so far.")
        self.codes = Matrix(
            id="learn_codes",
            title=tr("P, the codes of the places"),
            formula=tr("as in “Positions”"),
            rows=tokens,
            columns=width,
            numbers=task.codes_NW,
            source={"op": "code", "from": [], "width": _WIDTH, "base": 10000.0},
        )
        self.words = Matrix(
            id="learn_words",
            title=tr("E, the words"),
            formula=tr("1 at the token's own word"),
            rows=tokens,
            columns=words,
            numbers=task.words_NC,
            source=provenance.given(tr("1 at the token's own word, else 0.")),
            shade="bits",
            digits=0,
        )
        self.wq = self._weight("learn_wq", "W_Q", width, q_names, now.wq_WW, say)
        self.wk = self._weight("learn_wk", "W_K", width, k_names, now.wk_WW, say)
        start = tr(
            "{start} on the diagonal and 0 elsewhere at the start, moved by the gradient steps so far.",
            start=f"{_START_V:.0f}",
        )
        self.wv = self._weight("learn_wv", "W_V", words, words, now.wv_CC, start)
        q_NW, k_NW, v_NC = task.codes_NW @ now.wq_WW, task.codes_NW @ now.wk_WW, task.words_NC @ now.wv_CC
        self.q = _product("learn_q", "Q = P W_Q", tokens, q_names, q_NW, "learn_codes", "learn_wq", _WIDTH)
        self.k = _product("learn_k", "K = P W_K", tokens, k_names, k_NW, "learn_codes", "learn_wk", _WIDTH)
        self.v = _product("learn_v", "V = E W_V", tokens, words, v_NC, "learn_words", "learn_wv", len(words))
        raw_NN = scores(q_NW, k_NW)
        factor = _WIDTH**-0.5
        self.raw = Matrix(
            id="learn_raw",
            title=tr("Scores Q Kᵀ"),
            formula="qᵢ · kⱼ",
            rows=tokens,
            columns=tokens,
            numbers=raw_NN,
            source=provenance.dot(cell("learn_q", "i", "m"), cell("learn_k", "j", "m"), _WIDTH),
        )
        self.scaled = Matrix(
            id="learn_scaled",
            title=tr("Scores, scaled"),
            formula=f"· 1/√{_WIDTH}",
            rows=tokens,
            columns=tokens,
            numbers=raw_NN * factor,
            source=provenance.scaled(cell("learn_raw", "i", "j"), factor, f"1/√{_WIDTH}"),
        )
        self.weights = Matrix(
            id="learn_weights",
            title=tr("Weights A"),
            formula=tr("softmax of each row"),
            rows=tokens,
            columns=tokens,
            numbers=now.weights_NN,
            source=provenance.softmax(cell("learn_scaled", "i", "j"), cell("learn_scaled", "i", "m"), n),
            shade="share",
        )
        output_NC = attention(q_NW, k_NW, v_NC)
        assert isinstance(output_NC, Tensor)
        self.output = _product(
            "learn_output", tr("Scores of the words, A V"), tokens, words, output_NC, "learn_weights", "learn_v", n
        )
        self.chances = Matrix(
            id="learn_chances",
            title=tr("Probabilities"),
            formula=tr("softmax of each row"),
            rows=tokens,
            columns=words,
            numbers=output_NC.softmax(-1),
            source=provenance.softmax(cell("learn_output", "i", "j"), cell("learn_output", "i", "m"), len(words)),
            shade="share",
        )
        before = task.before_N.tolist()
        self.wanted = Matrix(
            id="learn_wanted",
            title=tr("The right answer"),
            formula=tr("1 at the word before; of the first token, at its own"),
            rows=tokens,
            columns=words,
            numbers=one_hot(task.before_N, len(words)).float(),
            source=provenance.given(tr("1 at the word before the token; of the first token, at its own word.")),
            shade="bits",
            digits=0,
        )
        losses_N = -output_NC.log_softmax(-1)[torch.arange(n), task.before_N]
        self.losses = Matrix(
            id="learn_losses",
            title=tr("Loss of each token"),
            formula=tr("-log of the probability of the right answer"),
            rows=tokens,
            columns=(tr("loss"),),
            numbers=losses_N[:, None],
            source=provenance.negative_log(cell("learn_chances", "i", provenance.picked(before, "i"))),
            shade="none",
            digits=4,
        )
        self.loss = Matrix(
            id="learn_loss",
            title=tr("The loss"),
            formula=tr("their mean"),
            rows=(tr("all"),),
            columns=(tr("loss"),),
            numbers=torch.tensor([[now.loss]]),
            source=provenance.mean(cell("learn_losses", "m", 0), n),
            shade="none",
            digits=4,
        )

    @staticmethod
    def _weight(id: str, title: str, rows: Sequence[str], columns: Sequence[str], numbers: Tensor, say: str) -> Matrix:
        return Matrix(
            id=id,
            title=title,
            formula=tr("moved by the steps"),
            rows=rows,
            columns=columns,
            numbers=numbers,
            source=provenance.given(say),
        )


def _product(
    id: str, title: str, rows: Sequence[str], columns: Sequence[str], numbers: Tensor, left: str, right: str, over: int
) -> Matrix:
    """A product of two matrices; left (i, m), right (m, j)."""
    source = provenance.dot(cell(left, "i", "m"), cell(right, "m", "j"), over)
    return Matrix(id=id, title=title, formula="", rows=rows, columns=columns, numbers=numbers, source=source)


def _progress(example: Example, states: Sequence[State], made: _Forward) -> tuple[Section, Section]:
    count = len(example.tokens)
    rows = [
        (
            number,
            each.loss,
            each.right,
            sum(float(gradient.square().sum()) for gradient in each.gradients) ** 0.5,
            _one_back(each.weights_NN),
        )
        for number, each in enumerate(states)
    ]
    matrix = Matrix(
        id="learn_progress",
        title=tr("Step by step"),
        formula=tr("{states} steps at a learning rate of {rate}", states=len(states) - 1, rate=f"{example.rate:g}"),
        rows=[tr("after {number}", number=number) for number in range(len(states))],
        columns=(tr("step"), tr("loss"), tr("right"), tr("gradient"), tr("one place back")),
        numbers=torch.tensor(rows, dtype=torch.float32),
        source=provenance.given(
            tr(
                "Gradient descent by autograd from the same start: the loss, the tokens whose answer is right, the length of the"
                " gradient of all three matrices, and the mean weight on the place before."
            )
        ),
        shade="none",
        digits=4,
    )
    now, last = states[example.steps], states[-1]
    first = states[0]
    here = tr(
        "At step {step} the loss is {loss}; right answers: {right} of {answers}.",
        step=example.steps,
        loss=shown(now.loss),
        right=now.right,
        answers=count,
    )
    way = tr(
        "From the start to step {states} the loss goes from {loss} to {loss2}, and right answers from {right} to"
        " {right2} of {count}.",
        states=len(states) - 1,
        loss=shown(first.loss),
        loss2=shown(last.loss),
        right=first.right,
        right2=last.right,
        count=count,
    )
    chart = Chart(
        title=tr("The loss over the steps"),
        matrix=matrix.id,
        lines=(1, 3),
        description=way,
        x_title=tr("steps"),
        y_title=tr("loss, gradient"),
    )
    steps = Section(
        title=tr("Make steps"),
        text=(
            tr(
                "The loss says how wrong the answers are. Its gradient says, for every number of W_Q, W_K and W_V, in which"
                " direction the loss grows; a step moves each number a little in the other. Nobody says where to look."
            ),
        ),
        controls=("steps", "rate"),
        charts=(chart,),
        findings=(
            LessonFinding(text=here, cells=[(matrix.id, example.steps, 1), (matrix.id, example.steps, 2)]),
            LessonFinding(text=way, cells=[(matrix.id, 0, 1), (matrix.id, len(states) - 1, 1)]),
        ),
        matrices=(made.weights, made.output),
    )
    return steps, Section(title=tr("Step by step"), matrices=(matrix,), folded=True)


def _one_back(weights_NN: Tensor) -> float:
    """The mean weight on the place before; of a single token, on itself."""
    return float(weights_NN.diagonal(-1).mean()) if len(weights_NN) > 1 else float(weights_NN[0, 0])


_MOMENTS = 101  # that are recorded, at most: of every step, where a film has no more than a hundred


def _film(example: Example, states: Sequence[State], progress: Matrix, made: _Forward) -> Illustration:
    """The scores P W_Q W_K^T P^T as they grow, with their factors."""
    task, last = task_of(example.tokens), len(states) - 1
    moments = list(dict.fromkeys(round(last * moment / (_MOMENTS - 1)) for moment in range(_MOMENTS)))
    places = [f"{place}: {token}" for place, token in enumerate(example.tokens)]
    numbers = torch.stack(
        [scores(task.codes_NW @ states[at].wq_WW, task.codes_NW @ states[at].wk_WW) for at in moments]
    )
    growing = Matrix(
        id="learn_forms",
        title="P W_Q W_Kᵀ Pᵀ",
        formula=tr("a row for the place that looks, a column for the place looked at"),
        rows=places,
        columns=places,
        numbers=numbers,
        source=provenance.given(tr("The scores Q Kᵀ with W_Q and W_K of that step.")),
    )
    shares = Matrix(
        id="learn_shares",
        title=tr("Weights A"),
        formula=tr("softmax of each row"),
        rows=places,
        columns=places,
        numbers=torch.stack([states[at].weights_NN for at in moments]),
        source=provenance.given(tr("The weights with W_Q and W_K of that step.")),
        shade="share",
    )
    say = tr("The numbers of that step.")
    wq, wk = (
        Matrix(
            id=f"{now.id}_moments",
            title=now.title,
            formula=now.formula,
            rows=now.rows,
            columns=now.columns,
            numbers=torch.stack([getattr(states[at], field) for at in moments]),
            source=provenance.given(say),
        )
        for now, field in ((made.wq, "wq_WW"), (made.wk, "wk_WW"))
    )
    return Illustration(
        kind="film",
        title=tr("It learns where to look"),
        description=tr("Filled is a positive score, a ring is negative, a bigger circle is more."),
        matrices=(growing, progress, shares, made.codes, wq, wk),
        labels=[str(at) for at in moments],
    )


def _answers(example: Example, task: TrainingTask, made: _Forward) -> LessonFinding:
    losses = made.losses.numbers[:, 0]
    i = int(losses.argmax())
    wanted = task.words[int(task.before_N[i])]
    chance = float(made.chances.numbers[i, int(task.before_N[i])])
    text = tr(
        "The largest loss is that of “{tokens}”: it gives “{wanted}” a probability of {chance}.",
        tokens=example.tokens[i],
        wanted=wanted,
        chance=shown(chance),
    )
    return LessonFinding(text=text, cells=[("learn_losses", i, 0), ("learn_chances", i, int(task.before_N[i]))])


def _backwards(example: Example, task: TrainingTask, now: State, made: _Forward) -> Section:
    """The gradient from the loss back to the matrices, each by the chain rule; dS by autograd through the operation."""
    tokens, words, n = example.tokens, task.words, len(example.tokens)
    factor = _WIDTH**-0.5
    with torch.enable_grad():
        bias_NN = torch.zeros(n, n, requires_grad=True)
        q_NW, k_NW, v_NC = (each.numbers.clone().requires_grad_() for each in (made.q, made.k, made.v))
        output_NC = attention(q_NW, k_NW, v_NC, bias=bias_NN)
        assert isinstance(output_NC, Tensor)
        loss = cross_entropy(output_NC, task.before_N)
        dz_NC, ds_NN, dq_NW, dk_NW, dv_NC = torch.autograd.grad(loss, (output_NC, bias_NN, q_NW, k_NW, v_NC))
    da_NN = dz_NC @ v_NC.detach().T
    mean_N1 = (now.weights_NN * da_NN).sum(-1, keepdim=True)

    def matrix(
        id: str,
        title: str,
        formula: str,
        columns: Sequence[str],
        numbers: Tensor,
        source: provenance.Rule,
        **rows: Sequence[str],
    ) -> Matrix:
        return Matrix(
            id=f"learn_{id}",
            title=title,
            formula=formula,
            rows=rows.get("rows", tokens),
            columns=columns,
            numbers=numbers,
            source=source,
            digits=3,
        )

    def of(id: str, row: provenance.Index, column: provenance.Index) -> provenance.Rule:
        return cell(f"learn_{id}", row, column)

    q_names, k_names = made.q.columns, made.k.columns
    errors = made.chances.numbers - made.wanted.numbers
    matrices = (
        matrix("errors", tr("Errors"), tr("probability - right answer"), words, errors, provenance.minus(of("chances", "i", "j"), of("wanted", "i", "j"))),
        matrix("dz", "dZ", tr("errors · 1/{n}", n=n), words, dz_NC, provenance.scaled(of("errors", "i", "j"), 1 / n, f"1/{n}")),
        matrix("dv", "dV", "Aᵀ dZ", words, dv_NC, provenance.dot(of("weights", "m", "i"), of("dz", "m", "j"), n)),
        matrix("da", "dA", "dZ Vᵀ", tokens, da_NN, provenance.dot(of("dz", "i", "m"), of("v", "j", "m"), len(words))),
        matrix("da_mean", tr("Mean of dA"), "Σⱼ a(i, j) dA(i, j)", (tr("mean"),), mean_N1, provenance.dot(of("weights", "i", "m"), of("da", "i", "m"), n)),
        matrix("da_apart", tr("dA - its mean"), "dA(i, j) - μ(i)", tokens, da_NN - mean_N1, provenance.minus(of("da", "i", "j"), of("da_mean", "i", 0))),
        matrix("ds", tr("dS, through softmax"), "a(i, j) (dA(i, j) - μ(i))", tokens, ds_NN, provenance.product(of("weights", "i", "j"), of("da_apart", "i", "j"))),
        matrix("ds_raw", tr("dS, gradient of the scores before scaling"), f"· 1/√{_WIDTH}", tokens, ds_NN * factor, provenance.scaled(of("ds", "i", "j"), factor, f"1/√{_WIDTH}")),
        matrix("dq", "dQ", "dS K", q_names, dq_NW, provenance.dot(of("ds_raw", "i", "m"), of("k", "m", "j"), n)),
        matrix("dk", "dK", "dSᵀ Q", k_names, dk_NW, provenance.dot(of("ds_raw", "m", "i"), of("q", "m", "j"), n)),
    )  # fmt: skip
    dwq_WW, dwk_WW, dwv_CC = now.gradients
    gradients = (
        matrix("dwq", tr("Gradient of {matrix}", matrix="W_Q"), "Pᵀ dQ", q_names, dwq_WW, provenance.dot(of("codes", "m", "i"), of("dq", "m", "j"), n), rows=made.wq.rows),
        matrix("dwk", tr("Gradient of {matrix}", matrix="W_K"), "Pᵀ dK", k_names, dwk_WW, provenance.dot(of("codes", "m", "i"), of("dk", "m", "j"), n), rows=made.wk.rows),
        matrix("dwv", tr("Gradient of {matrix}", matrix="W_V"), "Eᵀ dV", words, dwv_CC, provenance.dot(of("words", "m", "i"), of("dv", "m", "j"), n), rows=words),
    )  # fmt: skip
    sizes = [float(each.numbers.abs().max()) for each in gradients]
    which = max(range(3), key=sizes.__getitem__)
    at = divmod(int(gradients[which].numbers.abs().argmax()), len(gradients[which].columns))
    text = tr(
        "The number with the largest gradient is in {value}: {numbers}. Every number of the way back is written out"
        " below.",
        value=("W_Q", "W_K", "W_V")[which],
        numbers=shown(float(gradients[which].numbers[at])),
    )
    return Section(
        title=tr("The gradients"),
        matrices=(*gradients, *matrices),
        findings=(LessonFinding(text=text, cells=[(gradients[which].id, *at)]),),
        folded=True,
    )


def _after(example: Example, states: Sequence[State]) -> Section:
    """The next step, and the weights that it gives."""
    task, now = task_of(example.tokens), states[example.steps]
    moved = [each - example.rate * gradient for each, gradient in zip(now[:3], now.gradients, strict=True)]
    then = state_of(task, *moved)
    tokens, words = example.tokens, task.words
    rate = example.rate
    sizes = (("wq", "W_Q", numbered("p", _WIDTH), numbered("q", _WIDTH)), ("wk", "W_K", numbered("p", _WIDTH), numbered("k", _WIDTH)), ("wv", "W_V", words, words))  # fmt: skip
    matrices = [
        Matrix(
            id=f"learn_{id}_next",
            title=tr("{title} after one more step", title=title),
            formula=tr("{title} - {rate} · gradient", title=title, rate=f"{rate:g}"),
            rows=rows,
            columns=columns,
            numbers=numbers,
            source=provenance.moved(cell(f"learn_{id}", "i", "j"), cell(f"learn_d{id}", "i", "j"), rate),
        )
        for (id, title, rows, columns), numbers in zip(sizes, moved, strict=True)
    ]
    pictures = [
        Matrix(
            id=f"learn_weights_{number}",
            title=tr("Weights at the start")
            if number == 0
            else tr_n("Weights after {count} step", "Weights after {count} steps", number),
            formula=tr("softmax of each row"),
            rows=tokens,
            columns=tokens,
            numbers=states[number].weights_NN,
            source=provenance.given(tr("The weights A with the three matrices of that step.")),
            shade="share",
        )
        for number in (0, len(states) - 1)
    ]
    before, after = shown(now.loss), shown(then.loss)
    if before == after:
        change = tr("With one more step the loss stays at {before}.", before=before)
    elif then.loss < now.loss:
        change = tr("With one more step the loss falls from {before} to {after}.", before=before, after=after)
    else:
        change = tr(
            "With one more step the loss rises from {before} to {after}: the step was too long.",
            before=before,
            after=after,
        )
    return Section(
        title=tr("One more step, and many"),
        matrices=(*matrices, *pictures),
        folded=True,
        findings=(
            LessonFinding(text=change, cells=[("learn_wq_next", 0, 0)]),
            _on_the_word_before(tokens, pictures[-1], len(states) - 1),
        ),
    )


def _on_the_word_before(tokens: Sequence[str], weights: Matrix, number: int) -> LessonFinding:
    n = len(tokens)
    if n == 1:
        return LessonFinding(text=tr("A single token has no word before it; its weight on itself is 1 from the start."))
    places = [(i, i - 1) for i in range(1, n)]
    mean = sum(float(weights.numbers[place]) for place in places) / len(places)
    text = tr(
        "After {number} steps a token gives the one before it {mean} of its attention on average; nobody has told it"
        " where to look.",
        number=number,
        mean=shown(mean),
    )
    return LessonFinding(text=text, cells=[(weights.id, i, j) for i, j in places])


def _crude(example: Example, task: TrainingTask, made: _Forward) -> Section:
    """X X^T X on the same input: no parameter, no gradient, no learning."""
    tokens, words, n = example.tokens, task.words, len(example.tokens)
    u_NU = torch.cat((task.codes_NW, task.words_NC), dim=-1)
    columns = (*made.codes.columns, *words)
    x = Matrix(
        id="learn_x",
        title="X = [P | E]",
        formula=tr("codes and words side by side"),
        rows=tokens,
        columns=columns,
        numbers=u_NU,
        source=provenance.by_column(
            [provenance.copy(cell("learn_codes", "i", c)) for c in range(_WIDTH)]
            + [provenance.copy(cell("learn_words", "i", c)) for c in range(len(words))]
        ),
    )
    alike = Matrix(
        id="learn_crude_scores",
        title="X Xᵀ",
        formula="xᵢ · xⱼ",
        rows=tokens,
        columns=tokens,
        numbers=scores(u_NU, u_NU),
        source=provenance.dot(cell("learn_x", "i", "m"), cell("learn_x", "j", "m"), len(columns)),
    )
    output_NC = unnormalised(u_NU, u_NU, task.words_NC)
    output = _product(
        "learn_crude",
        tr("X Xᵀ X, the columns of the words"),
        tokens,
        words,
        output_NC,
        "learn_crude_scores",
        "learn_words",
        n,
    )
    loss, right = float(cross_entropy(output_NC, task.before_N)), int((output_NC.argmax(-1) == task.before_N).sum())
    text = tr(
        "Crude attention on the same input has a loss of {loss} and {right} of {n} right answers, after any number of"
        " steps: it has no W_Q, W_K or W_V, so there is nothing to move.",
        loss=shown(loss),
        right=right,
        n=n,
    )
    return Section(
        title=tr("The same with crude attention"),
        matrices=(x, alike, output),
        findings=(LessonFinding(text=text, cells=[(output.id, i, c) for i in range(n) for c in range(len(words))]),),
        folded=True,
    )
