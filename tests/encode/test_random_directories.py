"""Random settings in random directories of sentence-transformers are computed as sentence-transformers does, or refused by name."""

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("transformers", minversion="5")
pytest.importorskip("sentence_transformers", minversion="6")
import random_directories


@pytest.mark.filterwarnings("ignore")  # of theirs, about old keys
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(24), marks=pytest.mark.slow, id="24"),
        *(
            pytest.param(range(first, first + 100), marks=pytest.mark.stress, id=f"{first}")
            for first in range(100, 700, 100)
        ),
    ],
)
def test_no_setting_is_ignored(seeds: range, tmp_path: Path) -> None:
    counts, wrong = Counter[str](), []
    for seed in seeds:
        directory = random_directories.random_directory(seed, tmp_path)
        result = random_directories.outcome(directory)
        counts[result.partition(":")[0]] += 1
        if result not in ("computed", "refused", "alone"):
            wrong.append(f"{directory.words}: {result}")
    said = f"{len(seeds)} directories: {dict(counts)}"
    assert not wrong, "\n".join([said, *wrong])
    assert min(counts["computed"], counts["refused"]) > len(seeds) // 4, said
