"""Learning: W_Q, W_K and W_V moved by gradient steps until each token names the word before it.

The task reads the sentence alone: queries and keys come from position codes P, values from the words. Each value is a row of
scores over the words, so that an output is too, and its softmax is compared with the word that comes before (cross-entropy).

Letters: N tokens, C distinct words, W width of the codes and of queries and keys.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from uwaga.lessons.compute import at_largest, attention, scores, unnormalised
from uwaga.lessons.document import Illustration, LessonFinding, LessonStep, Section, shown
from uwaga.lessons.example import Example, numbered
from uwaga.lessons.matrix import EVERY, Matrix, made, rule, side_by_side
from uwaga.lessons.page import Page
from uwaga.lessons.question import which_token
from uwaga.nn import SinusoidalPositions

_WIDTH = 8
_FACTOR = _WIDTH**-0.5
_AHEAD = 100  # steps that the chart shows, at least; as many are recorded
_MOMENTS = 101  # that the film records, at most: each step, if it has no more than a hundred
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
    """Return the loss of three matrices, and its gradients by autograd."""
    with torch.enable_grad():
        wq_WW, wk_WW, wv_CC = (weight.detach().requires_grad_() for weight in (wq_WW, wk_WW, wv_CC))
        q_NW, k_NW = task.codes_NW @ wq_WW, task.codes_NW @ wk_WW
        found_NC = attention(q_NW, k_NW, task.words_NC @ wv_CC)
        loss = cross_entropy(found_NC, task.before_N)
        dwq_WW, dwk_WW, dwv_CC = torch.autograd.grad(loss, (wq_WW, wk_WW, wv_CC))
    weights_NN = attention(q_NW.detach(), k_NW.detach(), torch.eye(len(task.before_N)))
    right = int((found_NC.argmax(-1) == task.before_N).sum())
    gradients = (dwq_WW, dwk_WW, dwv_CC)
    return State(wq_WW.detach(), wk_WW.detach(), wv_CC.detach(), float(loss.detach()), right, gradients, weights_NN)


@functools.lru_cache(maxsize=8)
def run(tokens: tuple[str, ...], rate: float, count: int) -> tuple[State, ...]:
    """Return the states after 0 to `count` steps of gradient descent."""
    task = task_of(tokens)
    generator = torch.Generator().manual_seed(0)
    wq_WW, wk_WW = (torch.randn(_WIDTH, _WIDTH, generator=generator) * _START_QK for _ in range(2))
    states = [state_of(task, wq_WW, wk_WW, torch.eye(len(task.words)) * _START_V)]
    for _ in range(count):
        last = states[-1]
        moved = (weight - rate * gradient for weight, gradient in zip(last[:3], last.gradients, strict=True))
        states.append(state_of(task, *moved))
    return tuple(states)


def ahead_of(example: Example) -> int:
    """Return how many steps are computed: the example's, rounded up."""
    return -(-max(example.steps, 1) // _AHEAD) * _AHEAD


def losses_at_start(example: Example) -> tuple[float, float]:
    """Return the loss before any step, at both ends of a line that does not fall."""
    loss = run(example.tokens, example.rate, ahead_of(example))[0].loss
    return loss, loss


def learning(page: Page) -> LessonStep:
    example, n = page.example, len(page.example.tokens)
    states = run(example.tokens, example.rate, ahead_of(example))
    task, now = task_of(example.tokens), states[example.steps]
    last = len(states) - 1
    _read(page, task)
    _attend(page, task, now)
    progress, way = _progress(page, states)
    gradients = _backwards(page, task, now)
    after = _after(page, states)
    weights = page[f"learn_weights_{last}"]
    losses = progress.numbers[:: max(1, last // 20), 1].tolist()
    return page.step(
        _make_steps(page, states, way),
        page.section("step_by_step", progress, folded=True),
        page.section("read", page["learn_codes"], page["learn_words"], folded=True),
        page.section("matrices", *(page[f"learn_w{letter}"] for letter in "qkv"), folded=True),
        page.section("attention", *(page[f"learn_{id}"] for id in ("q", "k", "v", "raw", "scaled")), folded=True),
        page.section(
            "loss_of_all",
            *(page[f"learn_{id}"] for id in ("chances", "wanted", "losses", "loss")),
            findings=(_answers(page, task),),
            folded=True,
        ),
        gradients,
        after,
        _crude(page, task),
        pictures=(_film(page, states, progress),),
        question=which_token(
            page,
            weights,
            n - 1,
            (weights.id, "learn_progress", "learn_forms", "learn_shares"),
            step=str(last),
            token=example.tokens[-1],
        ),
        ledger=(
            page.problem(
                "learned",
                page.text("learned", steps=last, loss=shown(states[0].loss), loss2=shown(states[-1].loss)),
                losses,
                solved=True,
            ),
        ),
        code="torch.autograd.grad(torch.nn.functional.cross_entropy(uwaga.attention(P @ W_Q, P @ W_K, E @ W_V), before),"
        " (W_Q, W_K, W_V))",
    )


def _read(page: Page, task: TrainingTask) -> None:
    """Make the matrices that are read, and those that say what is wanted."""
    tokens, places = page.example.tokens, numbered("p", _WIDTH)
    codes = made(task.codes_NW, tokens, places, rule("code", width=_WIDTH, base=10000.0))
    page.matrix("learn_codes", codes)
    is_own = page.stated("is_own")
    page.matrix("learn_words", made(task.words_NC, tokens, task.words, is_own, shade="bits", digits=0))
    is_before = page.stated("is_before")
    right_NC = one_hot(task.before_N, len(task.words)).float()
    page.matrix("learn_wanted", made(right_NC, tokens, task.words, is_before, shade="bits", digits=0))


def _attend(page: Page, task: TrainingTask, now: State) -> None:
    """Make the matrices from W_Q, W_K and W_V to the loss."""
    places, n = numbered("p", _WIDTH), len(page.example.tokens)
    random, diagonal = page.stated("random_start"), page.stated("diagonal_start", start=f"{_START_V:.0f}")
    for letter, source, read, numbers, rows in (
        ("q", random, "codes", now.wq_WW, places),
        ("k", random, "codes", now.wk_WW, places),
        ("v", diagonal, "words", now.wv_CC, task.words),
    ):
        columns = task.words if letter == "v" else numbered(letter, _WIDTH)
        weight = page.matrix(f"learn_w{letter}", made(numbers, rows, columns, source))
        x = page[f"learn_{read}"]
        page.matrix(f"learn_{letter}", (x @ weight).by_library(x.numbers @ numbers))
    q, k, v = (page[f"learn_{letter}"] for letter in "qkv")
    raw = page.matrix("learn_raw", q @ k.T)
    scaled = page.matrix("learn_scaled", raw.scaled(_FACTOR, f"1/√{_WIDTH}"), say=f"1/√{_WIDTH}")
    weights = page.matrix("learn_weights", scaled.softmax().by_library(now.weights_NN))
    output_NC = attention(q.numbers, k.numbers, v.numbers)
    output = page.matrix("learn_output", (weights @ v).by_library(output_NC))
    chances = page.matrix("learn_chances", output.softmax())
    losses_N1 = -output_NC.log_softmax(-1)[torch.arange(n), task.before_N][:, None]
    source = rule("negative_log", chances.at("i", {"pick": task.before_N.tolist(), "by": "i"}))
    name = (page.text("loss"),)
    losses = page.matrix("learn_losses", made(losses_N1, weights.rows, name, source, shade="none", digits=4))
    loss = losses[EVERY, 0].mean(page.text("all"), axis=0).by_library(torch.tensor([[now.loss]]))
    page.matrix("learn_loss", loss.styled(shade="none", digits=4))


def _progress(page: Page, states: Sequence[State]) -> tuple[Matrix, LessonFinding]:
    """Return the loss step by step, and a sentence about it."""
    rows = [
        (
            number,
            state.loss,
            state.right,
            sum(float(gradient.square().sum()) for gradient in state.gradients) ** 0.5,
            _one_back(state.weights_NN),
        )
        for number, state in enumerate(states)
    ]
    progress = made(
        torch.tensor(rows, dtype=torch.float32),
        [page.text("after", number=number) for number in range(len(states))],
        page.texts("progress_columns"),
        page.stated("progress_given"),
        shade="none",
        digits=4,
    )
    first, last = states[0], states[-1]
    way = page.finding(
        "way",
        [("learn_progress", 0, 1), ("learn_progress", len(states) - 1, 1)],
        states=len(states) - 1,
        loss=shown(first.loss),
        loss2=shown(last.loss),
        right=first.right,
        right2=last.right,
        count=len(page.example.tokens),
    )
    rate = f"{page.example.rate:g}"
    return page.matrix("learn_progress", progress, states=len(states) - 1, rate=rate), way


def _make_steps(page: Page, states: Sequence[State], way: LessonFinding) -> Section:
    step, now = page.example.steps, states[page.example.steps]
    chart = page.chart("chart", "learn_progress", (1, 3), way, page.text("steps"), page.text("loss_gradient"))
    here = page.finding(
        "here",
        [("learn_progress", step, 1), ("learn_progress", step, 2)],
        step=step,
        loss=shown(now.loss),
        right=now.right,
        answers=len(page.example.tokens),
    )
    return page.section(
        "make_steps",
        page["learn_weights"],
        page["learn_output"],
        controls=("steps", "rate"),
        charts=(chart,),
        findings=(here, way),
    )


def _one_back(weights_NN: Tensor) -> float:
    """Return the mean weight on the place before; of a single token, on itself."""
    return float(weights_NN.diagonal(-1).mean()) if len(weights_NN) > 1 else float(weights_NN[0, 0])


def _film(page: Page, states: Sequence[State], progress: Matrix) -> Illustration:
    """Return the scores P W_Q W_K^T P^T as they grow, with their factors."""
    codes_NW, last = page["learn_codes"].numbers, len(states) - 1
    moments = list(dict.fromkeys(round(last * moment / (_MOMENTS - 1)) for moment in range(_MOMENTS)))
    places = [f"{place}: {token}" for place, token in enumerate(page.example.tokens)]
    forms = torch.stack([scores(codes_NW @ states[at].wq_WW, codes_NW @ states[at].wk_WW) for at in moments])
    growing = page.matrix("learn_forms", made(forms, places, places, page.stated("forms_given")))
    shares = torch.stack([states[at].weights_NN for at in moments])
    shares_given = page.stated("shares_given")
    factors = []
    for id, field in (("learn_wq", "wq_WW"), ("learn_wk", "wk_WW")):
        numbers = torch.stack([getattr(states[at], field) for at in moments])
        moment = made(numbers, page[id].rows, page[id].columns, page.stated("moments_given"))
        factors.append(page.matrix(f"{id}_moments", moment, id))
    return page.picture(
        "film",
        "film",
        growing,
        progress,
        page.matrix("learn_shares", made(shares, places, places, shares_given, shade="share"), "learn_weights"),
        page["learn_codes"],
        *factors,
        description=page.text("film_description"),
        labels=[str(at) for at in moments],
    )


def _answers(page: Page, task: TrainingTask) -> LessonFinding:
    i = int(page["learn_losses"].numbers[:, 0].argmax())
    target = int(task.before_N[i])
    return page.finding(
        "largest_loss",
        [("learn_losses", i, 0), ("learn_chances", i, target)],
        tokens=page.example.tokens[i],
        wanted=task.words[target],
        chance=shown(page["learn_chances"].numbers[i, target]),
    )


def _backwards(page: Page, task: TrainingTask, now: State) -> Section:
    """Return the gradients from the loss back to the matrices, each by the chain rule. The gradient of the scores comes
    from autograd through the operation."""
    q, k, v, weights = (page[f"learn_{id}"] for id in ("q", "k", "v", "weights"))
    codes, words, chances = (page[f"learn_{id}"] for id in ("codes", "words", "chances"))
    n = len(weights.rows)
    with torch.enable_grad():
        bias_NN = torch.zeros(n, n, requires_grad=True)
        q_NW, k_NW, v_NC = (matrix.numbers.clone().requires_grad_() for matrix in (q, k, v))
        output_NC = attention(q_NW, k_NW, v_NC, bias=bias_NN)
        loss = cross_entropy(output_NC, task.before_N)
        dz_NC, ds_NN, dq_NW, dk_NW, dv_NC = torch.autograd.grad(loss, (output_NC, bias_NN, q_NW, k_NW, v_NC))
    way: list[Matrix] = []

    def back(id: str, matrix: Matrix, numbers: Tensor | None = None, /, **values: Any) -> Matrix:
        matrix = (matrix if numbers is None else matrix.by_library(numbers)).styled(shade="signed", digits=3)
        way.append(page.matrix(f"learn_{id}", matrix, **values))
        return way[-1]

    errors = back("errors", chances - page["learn_wanted"])
    dz = back("dz", errors.scaled(1 / n, f"1/{n}"), dz_NC, n=n)
    dv = back("dv", weights.T @ dz, dv_NC)
    da = back("da", dz @ v.T, dz.numbers @ v.numbers.T)
    mean_N1 = (weights.numbers * da.numbers).sum(-1, keepdim=True)
    source = rule("dot", weights.at("i", "m"), da.at("i", "m"), over=n)
    mean = back("da_mean", made(mean_N1, weights.rows, (page.text("mean"),), source))
    apart = back("da_apart", da - mean[EVERY, 0])
    ds = back("ds", weights * apart, ds_NN)
    ds_raw = back("ds_raw", ds.scaled(_FACTOR, f"1/√{_WIDTH}"), say=f"1/√{_WIDTH}")
    dq = back("dq", (ds_raw @ k).styled(columns=q.columns), dq_NW)
    dk = back("dk", (ds_raw.T @ q).styled(columns=k.columns), dk_NW)
    count = len(way)
    for letter, x, gradient, numbers in zip("qkv", (codes, codes, words), (dq, dk, dv), now.gradients, strict=True):
        back(f"dw{letter}", x.T @ gradient, numbers, matrix=f"W_{letter.upper()}")
    gradients = way[count:]
    sizes = [float(gradient.numbers.abs().max()) for gradient in gradients]
    which = max(range(3), key=sizes.__getitem__)
    largest = gradients[which]
    at = at_largest(largest.numbers.abs())
    number = shown(largest.numbers[at])
    finding = page.finding("largest_gradient", [(largest.id, *at)], value=("W_Q", "W_K", "W_V")[which], numbers=number)
    return page.section("gradients", *gradients, *way[:count], findings=(finding,), folded=True)


def _after(page: Page, states: Sequence[State]) -> Section:
    """Return the next step, and the weights that it gives."""
    example, last = page.example, len(states) - 1
    now, rate = states[example.steps], example.rate
    moved = []
    for letter in "qkv":
        matrix = page[f"learn_w{letter}"].moved(page[f"learn_dw{letter}"], rate)
        title = f"W_{letter.upper()}"
        moved.append(page.matrix(f"learn_w{letter}_next", matrix, "one_more", title=title, rate=f"{rate:g}"))
    then = state_of(task_of(example.tokens), *(matrix.numbers for matrix in moved))
    pictures = []
    for number in (0, last):
        title = page.text("at_the_start") if number == 0 else page.counted("weights_after", number)
        source = page.stated("weights_given")
        weights = made(states[number].weights_NN, example.tokens, example.tokens, source, shade="share")
        pictures.append(page.matrix(f"learn_weights_{number}", weights, "weights_at", title=title))
    before, after = shown(now.loss), shown(then.loss)
    change = "stays" if before == after else "falls" if then.loss < now.loss else "rises"
    return page.section(
        "more",
        *moved,
        *pictures,
        folded=True,
        findings=(
            page.finding(change, [("learn_wq_next", 0, 0)], before=before, after=after),
            _on_the_word_before(page, pictures[-1], last),
        ),
    )


def _on_the_word_before(page: Page, weights: Matrix, number: int) -> LessonFinding:
    n = len(weights.rows)
    if n == 1:
        return page.finding("single_token")
    places = [(i, i - 1) for i in range(1, n)]
    mean = sum(float(weights.numbers[place]) for place in places) / len(places)
    return page.finding("nobody_told", [(weights.id, i, j) for i, j in places], number=number, mean=shown(mean))


def _crude(page: Page, task: TrainingTask) -> Section:
    """Return X X^T X on the same input: no parameter, no gradient, no learning."""
    n, words = len(page.example.tokens), page["learn_words"]
    x = page.matrix("learn_x", side_by_side((page["learn_codes"], words)))
    alike = page.matrix("learn_crude_scores", x @ x.T)
    output_NC = unnormalised(x.numbers, x.numbers, words.numbers)
    output = page.matrix("learn_crude", (alike @ words).by_library(output_NC))
    finding = page.finding(
        "nothing_to_move",
        [(output.id, i, c) for i in range(n) for c in range(len(words.columns))],
        loss=shown(cross_entropy(output_NC, task.before_N)),
        right=int((output_NC.argmax(-1) == task.before_N).sum()),
        n=n,
    )
    return page.section("with_crude", x, alike, output, findings=(finding,), folded=True)
