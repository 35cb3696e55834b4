"""Requests that are refused: what is wrong with them, and what they may hold."""

import asyncio
import threading
from unittest import mock

import numpy as np
from served import served
from waiting import HANG

from uwaga.serve.app import digest_of
from uwaga.serve.requests import Limits


def test_a_long_text_is_truncated_to_the_bits_of_encode(serving, encoder) -> None:
    """At a space, where the tokens before it are those of the whole; one without spaces is read whole, if a request may have its tokens."""
    texts = ["the cat " * 20_000, "." * 140_000]

    async def test(client) -> None:
        for text in texts:
            answer = await client.post("/v1/embeddings", {"input": text, "truncate": True})
            expected = encoder.encode([text], overflow="truncate")[0]
            assert np.float32(answer.json["data"][0]["embedding"]).tobytes() == expected.tobytes()
        ranked = await client.post("/v1/rerank", {"query": "." * 70_000, "documents": ["a"], "truncate": True})
        assert ranked.status == 200

    async def limited(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": texts[0], "truncate": True})
        assert answer.status == 200

    serving(test)
    serving(limited, limits=Limits(tokens=20))


@served(limits=Limits(body_bytes=200))
async def test_a_body_is_not_read_beyond_the_limit_announced_or_not(client) -> None:
    headers = {"Content_Type": "application/json"}
    parts = [b" " * 150, b" " * 150, AssertionError("it is read")]
    answer = await client.send("POST", "/v1/embeddings", parts, headers)
    assert answer.status == 413
    announced = headers | {"Content_Length": "201"}
    answer = await client.send("POST", "/v1/embeddings", [AssertionError("it is read")], announced)
    assert answer.status == 413


@served(hold=True, limits=Limits(tokens=12))
async def test_a_full_queue_is_said_and_what_is_in_it_is_computed(client, held) -> None:
    first = asyncio.ensure_future(client.post("/v1/embeddings", {"input": ["a cat", "a dog"]}))
    await held.begun.get()
    second = await client.post("/v1/embeddings", {"input": ["a house", "a mat"]})
    ranked = await client.post("/v1/rerank", {"query": "a", "documents": ["b", "c"]})
    assert second.status == ranked.status == 429
    assert (second.headers["retry-after"], second.json["error"]["code"]) == ("1", "queue_full")
    held.go()
    assert (await first).status == 200
    assert client.service.scheduler.held == 0


@served(limits=Limits(body_bytes=100))
async def test_bodies_beyond_the_limit_of_all_are_refused(client) -> None:
    others = client.service.limits.all_bodies_bytes - 20
    client.service.body_bytes += others
    answer = await client.post("/v1/embeddings", {"input": "a cat and a dog"})
    client.service.body_bytes -= others
    assert (answer.status, answer.json["error"]["code"]) == (429, "queue_full")


@served()
async def test_a_client_that_leaves_while_it_sends_gets_nothing(client) -> None:
    gone = asyncio.Event()
    gone.set()
    answer = await client.send("POST", "/v1/embeddings", [], {"Content_Type": "application/json"}, gone)
    assert answer.status == 0


@served()
async def test_a_large_body_holds_up_no_small_one(client) -> None:
    """Eight texts of 4 MB take a tokenizer half a minute."""
    go = threading.Event()
    prepare = client.service.prepare

    def waits(path: str, body: bytes):
        if len(body) > 1 << 18:
            assert go.wait(HANG)
        return prepare(path, body)

    client.service.prepare = waits
    body = b'{"input": "a cat"' + b" " * (1 << 18) + b"}"
    large = [asyncio.ensure_future(client.post("/v1/embeddings", body)) for _ in range(4)]
    assert (await client.post("/v1/embeddings", {"input": "a dog"})).status == 200
    go.set()
    assert [(await task).status for task in large] == [200] * 4


def test_keys_that_change_no_number_are_let_through(serving, encoder) -> None:
    extra = {"user": "a", "metadata": {"user": "a"}, "proxy_server_request": {"url": "b"}}

    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": "a cat"} | extra)
        assert np.float32(answer.json["data"][0]["embedding"]).tobytes() == encoder.encode(["a cat"])[0].tobytes()
        assert (await client.post("/v1/rerank", {"query": "a", "documents": ["b"]} | extra)).status == 200

    async def ignoring(client) -> None:
        body = {"input": "a cat", "input_type": "query", "dimensions": 0}
        answer = await client.post("/v1/embeddings", body)
        assert answer.json["error"]["message"].startswith("dimensions must be ")
        assert (await client.post("/v1/embeddings", body | {"dimensions": 5})).status == 200

    serving(test)
    serving(ignoring, limits=Limits(unread_keys=("input_type", "dimensions")))


@served(run=mock.Mock(side_effect=RuntimeError("a secret")))
async def test_an_error_of_the_model_is_in_the_log_and_not_in_the_response(client, caplog) -> None:
    answer = await client.post("/v1/embeddings", {"input": "a cat"})
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "a secret" in caplog.text


@served(keys=frozenset([digest_of("key-of-somebody")]))
async def test_keys(client) -> None:
    right = {"Authorization": "Bearer key-of-somebody"}
    for path in ("/metrics", "/v1/models"):
        assert (await client.get(path)).status == 401
        assert (await client.get(path, **right)).status == 200
    assert (await client.post("/v1/embeddings", {"input": "a cat"}, **right)).status == 200
    assert (await client.get("/health")).status == 200
