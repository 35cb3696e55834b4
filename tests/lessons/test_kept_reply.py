"""The reply in the fixtures of the front end's unit tests is the present one. `python tests/lessons/test_kept_reply.py`
writes it again."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from uwaga.viewer.service import answer_lesson as answer

KEPT = Path(__file__).parents[2] / "src/uwaga/viewer/front/tests/lesson/reply.json"
QUESTION = {"request": "lesson", "tokens": ["a", "pen", "."], "settings": {"sentences": [["a", "pen"], ["yes"]]}}


def make_reply() -> dict[str, Any]:
    reply = answer(QUESTION)
    arrays = [{"shape": list(array.shape), "data": numbers(array)} for array in reply.arrays]
    return {"meta": reply.meta, "arrays": arrays}


def numbers(array: Any) -> list[float | None]:
    """Six significant digits, and None for hidden numbers (NaN)."""
    return [None if np.isnan(value) else float(f"{value:.6g}") for value in array.ravel().tolist()]


def test_the_fixture_equals_the_present_reply() -> None:
    """Without the findings, whose texts contain numbers: the last bit of these depends on the machine."""
    kept, now = json.loads(KEPT.read_text(encoding="utf-8")), json.loads(json.dumps(make_reply()))
    assert kept["meta"]["matrices"] == now["meta"]["matrices"]
    assert kept["meta"]["request"] == now["meta"]["request"]
    assert kept["meta"]["limits"] == now["meta"]["limits"]
    for before, after in zip(kept["meta"]["steps"], now["meta"]["steps"], strict=True):
        assert [part["matrices"] for part in before["sections"]] == [part["matrices"] for part in after["sections"]]
        assert before["head"] == after["head"]
    for before, after in zip(kept["arrays"], now["arrays"], strict=True):
        assert before["shape"] == after["shape"]
        values = [np.array(array["data"], dtype=np.float64) for array in (before, after)]
        np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    KEPT.write_text(json.dumps(make_reply(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
