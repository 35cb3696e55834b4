"""Would a float32 linear map be faster by products of bfloat16, on a matrix unit?

x = x1 + x2 + x3 to 2^-24 of x, each part bfloat16. The six larger of the nine products of parts are within the error of float32 (Henry, Tang and Heinecke,
"Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019). They are one product of six times the depth, which this
benchmark times. It does not time the splitting, so that `float32 / six` is the most that can be gained. If that is below 1.25, the split is not worth its code.
"""

import torch
from harness import Report, options, parse
from timing import compare

import uwaga

HEADINGS = ("rows", "depth", "columns", "float32 ms", "six ms", "float32 / six", "error float32", "error six")
SHAPES = (
    (512, 384, 384),
    (512, 384, 1536),
    (4096, 384, 1536),
    (512, 768, 3072),
    (4096, 768, 3072),
)  # of MiniLM and BERT
PAIRS = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))  # parts of x and of the weight, the smallest products first


def split(x: torch.Tensor) -> list[torch.Tensor]:
    """Three bfloat16 parts whose sum is x to 2^-24 of it."""
    parts: list[torch.Tensor] = []
    for _ in range(3):
        parts.append(x.bfloat16())
        x = x - parts[-1].float()
    return parts


def error(result: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """The largest one, of the sum of the sizes of all terms."""
    exact, size = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    return float(((result.double() - exact).abs() / size).max())


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    chosen = parse(parser)
    report = Report(chosen, "float32 by six products of bfloat16, without the splitting", HEADINGS)
    for rows, depth, columns in SHAPES[:1] if chosen.quick else SHAPES:
        x, weight = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5
        x_parts, weight_parts = split(x), split(weight)
        wide_x = torch.cat([x_parts[at] for at, _ in PAIRS], dim=1)
        wide_weight = torch.cat([weight_parts[at] for _, at in PAIRS], dim=1)
        sides = {
            "float32": lambda: uwaga.linear(x, weight),  # noqa: B023
            "six": lambda: uwaga.linear(wide_x, wide_weight),  # noqa: B023
        }  # both run before the loop goes on
        with torch.inference_mode():
            measured = compare(sides, seconds=chosen.seconds)
            sums = sum(x_parts[a].float() @ weight_parts[b].float().T for a, b in PAIRS)
            report.row(
                str(rows), str(depth), str(columns),
                *(f"{1e3 * measured.seconds(side):.3f}" for side in sides),
                f"{measured.ratio('float32', to='six'):.2f}",
                f"{error(uwaga.linear(x, weight), x, weight):.1e}",
                f"{error(sums, x, weight):.1e}",
            )  # fmt: skip
