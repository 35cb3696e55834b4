"""What writes a file that its user names replaces no pipe and no socket: a pipe gets the content, and a socket is refused."""

import os
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from tiny_transformer import tiny

import uwaga
from uwaga import plots
from uwaga._base.durable import PathConflictError
from uwaga._base.errors import SoftDatabaseError
from uwaga.encode.vector_files import VectorsError, write_numpy
from uwaga.models import save
from uwaga.viewer.lesson import work_through
from uwaga.viewer.page.snapshot import save_snapshot
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View


def _map() -> uwaga.AttentionMap:
    x = torch.arange(12.0).view(1, 3, 4) / 12
    return uwaga.AttentionMap(x, x)


def _export(path: Path) -> None:
    with uwaga.SoftDatabase.create(path.with_name("db"), key_width=2) as db:
        db.append(torch.eye(2))
        db.export(path)


def _numpy(path: Path) -> None:
    whole = path.with_name("vectors.parquet")
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(4, np.float32)), 2)
    parquet.write_table(pa.table({"vector": column}), whole, compression="none")
    write_numpy(whole, path)


def _recording(path: Path) -> None:
    model = tiny("bert")
    with uwaga.watch(model) as recording, torch.no_grad():
        model(torch.tensor([[5, 6, 7]]))
    recording.save(path)


def _model(path: Path) -> None:
    """The weights; the directory is the one that the path is in."""
    path.with_name("model.safetensors").symlink_to(path)
    save(tiny("gpt2", max_position_embeddings=4), path.parent)


# By name: what writes to a path, and the first bytes of the file.
WRITERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "plots.save": (lambda path: plots.save(plots.heatmap(_map()[0].detach()), path), b"\x89PNG"),
    "a view": (lambda path: save_snapshot(ViewService(View.of({("encoder", 0): _map()})), path), b"<!doctype"),
    "a lesson": (lambda path: work_through("my pen .").save(path), b"<!doctype"),
    "a worksheet": (lambda path: work_through("my pen .").save_worksheet(path), b"<!doctype"),
    "SoftDatabase.export": (_export, b"PAR1"),
    "encode --numpy": (_numpy, b"\x93NUMPY"),
    "Recording.save": (_recording, b""),
    "models.save": (_model, b""),
}


def _read(pipe: int) -> bytes:
    """All that is written into a pipe by the program that opens it first."""
    result, events = [], select.poll()
    events.register(pipe, select.POLLIN)
    while events.poll() and (part := os.read(pipe, 2**16)):
        result.append(part)
    return b"".join(result)


@pytest.mark.slow
@pytest.mark.usefixtures("small_front")
@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_is_written_into_and_a_socket_refused(name: str, tmp_path: Path) -> None:
    write, first = WRITERS[name]
    suffix = {"encode --numpy": ".npy", "a view": ".html"}.get(name, ".png")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = tmp_path / "a" / f"pipe{suffix}"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(_read, pipe)
        try:
            write(path)
        except BaseException:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # ends the reader
            raise
        content = read.result()
    os.close(pipe)
    assert path.is_fifo()
    assert content.startswith(first)
    assert len(content) > 50
    refused = tmp_path / "b" / f"socket{suffix}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(refused))
        with pytest.raises((PathConflictError, SoftDatabaseError, VectorsError), match="it is a socket, not a file"):
            write(refused)
        assert refused.is_socket()
