"""The line of Python beside each step, executed with the step's own numbers, gives the matrices of that step whatever the options; and the words about numbers are true of them."""

import re
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

import uwaga
from uwaga import nn
from uwaga.lessons.build import build_steps
from uwaga.lessons.compute import layer_of
from uwaga.lessons.document import LessonStep
from uwaga.lessons.example import Example, parse_example, vector
from uwaga.lessons.steps.blocks import filled, spec_of
from uwaga.nn import MultiHeadAttention, SinusoidalPositions

Steps = dict[str, LessonStep]
SENTENCES = st.lists(st.sampled_from(["this", "is", "a", "pen", ".", "猫", "nobody", "é"]), min_size=1, max_size=6)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    tokens = draw(SENTENCES)
    width = draw(st.integers(1, 6))
    inner, values = draw(st.sampled_from([(width, width), (2, 4), (3, 1), (4, 4)]))
    numbers = st.integers(-8, 8).map(lambda n: n / 4)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return draw(st.lists(st.lists(numbers, min_size=columns, max_size=columns), min_size=rows, max_size=rows))

    settings = {"scaled": draw(st.booleans()), "norm": draw(st.sampled_from(["post", "pre"]))}
    settings |= {"steps": draw(st.integers(0, 9)), "written": draw(SENTENCES)}
    request: dict[str, Any] = {"tokens": tokens, "settings": settings}
    if draw(st.booleans()):
        request["x"] = matrix(len(tokens), width)
        request["settings"] |= {"wq": matrix(width, inner), "wk": matrix(width, inner), "wv": matrix(width, values)}
    return parse_example({"request": "lesson", **request})


def matrix(step: LessonStep, name: str) -> torch.Tensor:
    return next(m.numbers for section in step.sections for m in section.matrices if m.id == name)


def run(code: str, names: dict[str, Any]) -> list[Any]:
    """The values of the expressions, or of the names that are bound."""
    bound, _, expression = code.partition("     #")[0].rpartition(" = ")
    with torch.no_grad():
        if bound:
            exec(f"{bound} = {expression}", names)
            return [names[name.strip()] for name in bound.split(",")]
        return [eval(part, names) for part in expression.split("; ")]


# What each line gives: matrices of its step.
GIVES = {
    "crude": ["crude"],
    "vectors": ["q", "k", "v"],
    "scores": ["scores"],
    "scale": ["scaled"],
    "softmax": ["weights"],
    "sum": ["output"],
    "alike": ["feature_products"],
    "linear": ["linear_output"],
    "past": ["own_payload"],
    "length": ["twice_output"],
    "masks": ["past_output"],
    "database": ["keys_output", "payload_output"],
    "heads": ["layer_output"],
}


def lines_give_the_numbers_next_to_them(example: Example, steps: Steps) -> None:
    x = example.x_NM
    with torch.no_grad():
        single = layer_of(example, heads=1)
        q, k, v = (projected.squeeze(0) for projected in single.project(x, x, x))
    names = {"torch": torch, "uwaga": uwaga, "X": x, "payload": example.payload_NP, "q": q, "k": k, "v": v}
    for name, ids in GIVES.items():
        step = steps[name]
        layer = layer_of(example, heads=1 if name == "vectors" else example.heads)
        result = run(step.code, names | {"layer": layer})
        for computed, id in zip(result, ids, strict=True):
            torch.testing.assert_close(computed.reshape(matrix(step, id).shape), matrix(step, id))
    weights = matrix(steps["softmax"], "weights")
    for i in range(len(example.tokens)):
        (result,) = run(steps["weighted"].code, names | {"weights": weights, "i": i})
        assert torch.equal(result, matrix(steps["weighted"], "weighted")[i])
    if x.shape[1] % 2 == 0:
        (result,) = run(steps["positions"].code, names)
        assert torch.equal(result, matrix(steps["positions"], "x_placed"))
        assert isinstance(SinusoidalPositions(x.shape[1]), torch.nn.Module)
    else:
        assert steps["positions"].code == ""


def lines_of_blocks_give_the_numbers_next_to_them(example: Example, steps: Steps) -> None:
    matrices = [
        made for id in ("encoder", "stack", "decoder") for section in steps[id].sections for made in section.matrices
    ]
    variances = torch.cat([made.numbers[:, 1] for made in matrices if made.id.endswith("_stats")])
    if variances.min() < 1e-3:  # LayerNorm enlarges rounding errors up to 316 times, and the next one again
        event("blocks are skipped")
        return
    inside = {"post": "block{}_ff_out_norm", "pre": "block{}_ff_sum"}[example.norm]
    last = {"post": "block2_ff_out_norm", "pre": "encoder_final_norm"}[example.norm]
    written = {"post": "decoder_ff_out_norm", "pre": "decoder_ff_sum"}[example.norm]
    spec = spec_of(example)
    memory = matrix(steps["stack"], last)
    names = {
        "uwaga": uwaga,
        "source": steps["encoder"].sections[0].matrices[0].numbers,
        "target": matrix(steps["decoder"], "written"),
        "memory": memory,
        "encoder_layer": filled(example, nn.EncoderLayer(spec)),
        "encoder": filled(example, nn.Encoder(spec, 2)),
        "decoder_layer": filled(example, nn.DecoderLayer(spec)),
        "decoder": filled(example, nn.Decoder(spec, 1)),
    }
    close(run(steps["encoder"].code, names), matrix(steps["encoder"], inside.format(1)))
    close(run(steps["stack"].code, names), memory)
    close(run(steps["decoder"].code, names), matrix(steps["decoder"], written))
    whole = (
        matrix(steps["decoder"], "decoder_final_norm") if example.norm == "pre" else matrix(steps["decoder"], written)
    )
    close(run(steps["architecture"].code, names), whole)


@settings(max_examples=6)
@given(examples())
def test_code_and_words_are_true_of_the_numbers(example: Example) -> None:
    steps = {step.id: step for step in build_steps(example)}
    for check in (
        lines_give_the_numbers_next_to_them,
        lines_of_blocks_give_the_numbers_next_to_them,
        the_line_of_the_learning_step_gives_its_gradients,
        the_layer_that_is_named_is_the_layer,
        scores_are_called_symmetric_only_if_they_are,
        findings_about_sums_heads_and_learning_are_true,
    ):
        check(example, steps)


def close(result: list[torch.Tensor], expected: torch.Tensor) -> None:
    """LayerNorm divides by as little as sqrt(1e-5), so rounding errors grow by up to 316."""
    torch.testing.assert_close(result[0], expected, rtol=1e-4, atol=1e-3)


def the_line_of_the_learning_step_gives_its_gradients(example: Example, steps: Steps) -> None:
    step = steps["learning"]
    names: dict[str, Any] = {"torch": torch, "uwaga": uwaga, "before": matrix(step, "learn_wanted").argmax(-1)}
    names |= {"P": matrix(step, "learn_codes"), "E": matrix(step, "learn_words")}
    names |= {f"W_{letter.upper()}": matrix(step, f"learn_w{letter}").requires_grad_() for letter in "qkv"}
    gradients = eval(step.code, names)
    for letter, gradient in zip("qkv", gradients, strict=True):
        torch.testing.assert_close(gradient, matrix(step, f"learn_dw{letter}"), rtol=1e-4, atol=1e-6)


def the_layer_that_is_named_is_the_layer(example: Example, steps: Steps) -> None:
    step = steps["heads"]
    constructor = re.search(r"# (uwaga\.nn\..*) with these weights", step.code)
    assert constructor is not None
    layer = eval(constructor[1], {"uwaga": uwaga})
    assert isinstance(layer, MultiHeadAttention)
    layer.load_state_dict(layer_of(example, example.heads).state_dict())
    with torch.no_grad():
        torch.testing.assert_close(layer(example.x_NM), matrix(step, "layer_output"))


@pytest.fixture(scope="module")
def plain() -> tuple[Example, Steps]:
    """The lesson's own example."""
    example = parse_example({"request": "lesson"})
    return example, {step.id: step for step in build_steps(example)}


def test_the_packed_and_the_padded_batch(plain: tuple[Example, Steps]) -> None:
    example, step = plain[0], plain[1]["batches"]
    sentences = [torch.tensor([vector(word, 4) for word in sentence]) for sentence in example.sentences]
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    padded = torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True)
    names = {"uwaga": uwaga, "layer": layer_of(example, example.heads), "sentences": sentences}
    packed, rectangle = run(step.code, names | {"padded": padded, "lengths": lengths})
    assert torch.equal(packed.values, matrix(step, "packed"))
    rows = torch.cat([row[:length] for row, length in zip(rectangle, lengths.tolist(), strict=True)])
    assert torch.equal(rows, matrix(step, "padded"))


def test_the_entropy_of_the_scaling_step(plain: tuple[Example, Steps]) -> None:
    step = plain[1]["root"]
    measured = matrix(step, "saturation")
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, int(measured[0, 0]), generator=generator) for n in (256, 32))
    (result,) = run(step.code, {"uwaga": uwaga, "q": q, "k": k, "v": torch.zeros(len(k), 1)})
    torch.testing.assert_close(result, measured[0, 1])


def scores_are_called_symmetric_only_if_they_are(example: Example, steps: Steps) -> None:
    step = steps["scores"]
    scores, says = matrix(step, "scores"), step.told[0]
    quoted = re.search(r"“(.*?)” has a score of (\S+) with “(.*?)”, and “.*?” one of (\S+) with", says)
    if quoted is None:
        assert "with these numbers it is" in says
        assert float((scores - scores.T).abs().max()) < 0.01
    else:
        assert "no longer symmetric" in says
        assert quoted[2] != quoted[4]


def findings_about_sums_heads_and_learning_are_true(example: Example, steps: Steps) -> None:
    said = {
        name: " ".join(finding.text for part in step.sections for finding in part.findings)
        for name, step in steps.items()
    }
    sums = matrix(steps["crude"], "crude_sums")
    assert ("happen to" in said["crude"]) == bool((sums - 1).abs().max() < 0.005)
    if example.heads > 1:
        apart = matrix(steps["heads"], "head1_weights") - matrix(steps["heads"], "head2_weights")
        assert ("have the same weights" in said["heads"]) == bool(apart.abs().max() < 0.005)
    before, after = re.search(
        r"With one more step the loss \w+ (?:from|at) (\S+?)(?: to (\S+?))?[.:](?:\s|$)", said["learning"]
    ).groups()  # type: ignore[union-attr]
    progress = matrix(steps["learning"], "learn_progress")[example.steps : example.steps + 2, 1]
    assert abs(float(before) - float(progress[0])) <= 0.0051
    assert after is None or abs(float(after) - float(progress[1])) <= 0.0051
    falls, rises = "falls from" in said["learning"], "rises from" in said["learning"]
    assert falls == (after is not None and bool(progress[1] < progress[0]))
    assert rises == (after is not None and bool(progress[1] > progress[0]))
