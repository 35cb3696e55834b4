"""Bodies that nobody wrote for these interfaces: any JSON, and 4 MB of the worst kinds."""

import json
import resource
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from uwaga import TextEncoder
from uwaga._base.options import field_rules
from uwaga._base.terminal import printable
from uwaga.serve.app import Service
from uwaga.serve.models import EmbeddingModel
from uwaga.serve.requests import POSTED, ApiError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["a cat", "float"]),
    lambda inside: st.lists(inside) | st.dictionaries(st.text() | st.just("text"), inside),
    max_leaves=8,
)
KEYS = sorted({key for kind in POSTED.values() for key in field_rules(kind)})
RIGHT = {key: ["a cat", "a dog"] for key in ("input", "documents")} | {"query": "a cat"}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, object]:
    """A path with any value, or with an object whose keys it mostly knows."""
    path = draw(st.sampled_from(sorted(POSTED)))
    if draw(st.integers(0, 3)) == 0:
        return path, draw(VALUES)
    keys = sorted(field_rules(POSTED[path]))
    drawn = draw(st.dictionaries(st.sampled_from(keys) | st.sampled_from(KEYS) | st.text(), VALUES, max_size=2))
    return path, {key: RIGHT[key] for key in keys if key in RIGHT} | drawn


@pytest.fixture
def service(encoder: TextEncoder) -> Iterator[Service]:
    made = Service(EmbeddingModel(encoder), name="tiny")
    yield made
    made.close()


def replied(service: Service, path: str, body: bytes) -> object:
    """The reply to a body, or the error in its place."""
    try:
        jobs, reply = service.prepare(path, body)
        return json.loads(b"".join(reply([service.model.run(job.items, job.kind) for job in jobs])))
    except ApiError as error:
        return error


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=100,
    database=None,
)
@given(bodies())
def test_any_json_gives_a_reply_or_an_error_that_names_the_key(service: Service, body: tuple[str, object]) -> None:
    path, value = body
    found = replied(service, path, json.dumps(value).encode())
    if not isinstance(found, ApiError):
        assert isinstance(value, dict)
    elif found.param is None:  # of no key: it is no object, or holds what is no JSON, or a lone surrogate
        assert found.status_code == 422
        assert found.detail.startswith("the request ")
    else:
        assert found.status_code in (404, 413, 422)
        assert found.param in {*KEYS, *map(printable, value)}
        assert found.param[:100] in found.detail  # which cuts longer keys


def large(size: int) -> dict[str, tuple[str, bytes, str]]:
    """Bodies of up to so many bytes: a path, the body, and the key of its error."""
    keys = b",".join(b'"%x":0' % number for number in range(size // 10))

    def repeated(part: bytes) -> bytes:
        return part * min(size // len(part), 1_900_000, 490_000 if part[:1] in b"[{" else size)

    return {
        "strings": ("/v1/embeddings", b'{"input":[%b""]}' % repeated(b'"",'), "input"),
        "numbers and a string": ("/v1/embeddings", b'{"input":[%b"a"]}' % repeated(b"1,"), "input"),
        "lists": ("/v1/embeddings", b'{"input":[%b[]]}' % repeated(b"[],"), "input"),
        "wrong passages": ("/v1/rerank", b'{"query":"a","documents":[%b1]}' % repeated(b"1,"), "documents"),
        "objects": ("/v1/rerank", b'{"query":"a","documents":[%b1]}' % repeated(b'{"text":""},'), "documents"),
        "keys of the body": ("/v1/embeddings", b"{%b}" % keys, "0"),
        "keys of a passage": ("/v1/rerank", b'{"query":"a","documents":[{%b}]}' % keys, "documents"),
        "keys of a value": ("/v1/embeddings", b'{"input":{%b}}' % keys, "input"),
    }


@pytest.mark.timing
@pytest.mark.parametrize("kind", large(0))
def test_a_large_wrong_body_costs_neither_seconds_nor_gigabytes(service: Service, kind: str) -> None:
    """Parsing takes half a second and 100 MB; 400,000 errors took 6 seconds and 1.4 GB."""
    path, body, key = large(4 << 20)[kind]
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = replied(service, path, body)
    assert isinstance(found, ApiError)
    assert found.param == key
    assert time.process_time() - begun < 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10
