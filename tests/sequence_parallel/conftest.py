from collections.abc import Callable
from typing import Any

import pytest
from running import run


@pytest.fixture(scope="module")
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Any]]:
    """Jobs run when the first test asks for one of them: those of the module's IN_GATE together, each of the others by itself."""
    folder = tmp_path_factory.mktemp("processes")
    done: dict[str, Callable[[str], list[Any]]] = {}

    def read(job: str) -> list[Any]:
        if job not in done:
            jobs = request.module.IN_GATE if job in request.module.IN_GATE else [job]
            done.update(dict.fromkeys(jobs, run(folder, jobs)))
        return done[job](job)

    return read
