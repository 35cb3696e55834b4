"""The six steps as a worksheet for paper: what is given, blank matrices to fill in, and the solutions on pages behind."""

from collections.abc import Iterator
from html import escape

from uwaga._base.languages import current, decimal, filled, significant
from uwaga._base.terminal import escape_controls
from uwaga.lessons.document import LessonStep
from uwaga.lessons.matrix import Matrix
from uwaga.lessons.page import texts_of

# The matrices to fill in, by the id of each of the six steps.
_TASKS = {
    "vectors": ("q", "k", "v"),
    "scores": ("scores",),
    "scale": ("scaled",),
    "softmax": ("exponentials", "weights"),
    "weighted": ("weighted",),
    "sum": ("output",),
}
_STYLE = """
@page { size: A4; margin: 15mm; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 180mm; padding: 1rem; color: #000; background: #fff; font: 11pt/1.4 system-ui, sans-serif; }
h1 { font-size: 18pt; margin: 0 0 2mm; } h2 { font-size: 13pt; margin: 7mm 0 1mm; break-after: avoid; }
.matrices { display: flex; flex-wrap: wrap; gap: 4mm 8mm; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: 2mm; break-inside: avoid; }
caption { text-align: start; } caption span { color: #444; }
th { font-weight: 400; text-align: end; padding: 0 2mm; color: #333; }
td { min-width: 13mm; height: 8mm; border: 1px solid #555; text-align: end; padding: 0 2mm; }
ul { list-style: none; margin: 1mm 0; padding: 0; display: flex; flex-wrap: wrap; gap: 1mm 6mm; }
ul li::before { content: "\\2610\\00a0"; } .right::before { content: "\\2611\\00a0"; }
thead td { border: 0; }
.solutions { break-before: page; }
"""


def worksheet_html(steps: tuple[LessonStep, ...], tokens: tuple[str, ...]) -> str:
    """Return one HTML page, printed on A4: the task, then the solutions on a new page."""
    asked = [step for step in steps if step.id in _TASKS]
    matrices = {matrix.id: matrix for step in asked for section in step.sections for matrix in section.matrices}
    sentence = _text(" ".join(tokens))
    inputs = _tables((matrices[id] for id in ("x", "wq", "wk", "wv")), tokens, 0, filled=True)
    texts = texts_of(current())["worksheet"]
    title, given_title, scaled, solutions = (str(texts[key]) for key in ("title", "given", "scaled", "solutions"))
    scale = filled(scaled, {"scale": matrices["scaled"].source["say"]})
    parts = [
        f"<h1>{title}</h1><p>{sentence}</p><h2>{given_title}</h2>{inputs}<p>{_text(scale)}</p>",
        *(_task(step, matrices, tokens, filled=False) for step in asked),
    ]
    solved = [_task(step, matrices, tokens, filled=True) for step in asked]
    return (
        f'<!doctype html><html lang="{current()}"><head><meta charset="utf-8"><title>{title}: {sentence}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f'<main>{"".join(parts)}</main><section class="solutions"><h1>{solutions}</h1>{"".join(solved)}</section></body></html>\n'
    )


def _task(step: LessonStep, matrices: dict[str, Matrix], tokens: tuple[str, ...], *, filled: bool) -> str:
    parts = [f"<h2>{_text(f'{step.number}: {step.title}')}</h2>"]
    if step.question is not None:
        choices = "".join(
            f"<li{_right(filled and place in step.question.answers)}>{_text(choice)}</li>"
            for place, choice in enumerate(step.question.choices)
        )
        why = f"<p>{_text(step.question.why)}</p>" if filled else ""
        parts.append(f"<p>{_text(step.question.text)}</p><ul>{choices}</ul>{why}")
    token = 0 if step.question is None else step.question.token
    parts.append(_tables((matrices[id] for id in _TASKS[step.id]), tokens, token, filled=filled))
    return "".join(parts)


def _right(is_right: bool) -> str:
    return ' class="right"' if is_right else ""


def _tables(matrices: Iterator[Matrix], tokens: tuple[str, ...], token: int, *, filled: bool) -> str:
    tables = "".join(_table(matrix, tokens, token, filled=filled) for matrix in matrices)
    return f'<div class="matrices">{tables}</div>'


def _table(matrix: Matrix, tokens: tuple[str, ...], token: int, *, filled: bool) -> str:
    """Return a matrix as a table. A matrix with a slice for each query shows the slice of the token that the step asks
    about."""
    is_sliced = matrix.numbers.dim() == 3
    numbers = (matrix.numbers[token] if is_sliced else matrix.numbers).tolist()
    title = f"{matrix.title} ({tokens[token]})" if is_sliced else matrix.title
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in matrix.columns)
    cells = [[f"<td>{_number(x, matrix) if filled else ''}</td>" for x in row] for row in numbers]
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}</th>{"".join(row)}</tr>'
        for name, row in zip(matrix.rows, cells, strict=True)
    )
    return (
        f'<table data-matrix="{matrix.id}"><caption><strong>{_text(title)}</strong> <span>{_text(matrix.formula)}</span></caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _number(number: float, matrix: Matrix) -> str:
    """Return a given number with all its digits, a computed one with the matrix's decimals."""
    if matrix.source["op"] != "typed":
        return decimal(number, matrix.digits)
    text = f"{number:.7g}"
    return significant(number, 7) if "e" in text else decimal(number, len(text.partition(".")[2]))


def _text(text: str) -> str:
    return escape(escape_controls(text, keep=""), quote=False)
