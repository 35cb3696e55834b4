"""Requests that are refused: what is wrong with them, in the form of the interface that they belong to, and what they may hold."""

import asyncio
import threading

import numpy as np
import pytest
from waiting import HANG

from uwaga.serve.requests import Limits

INPUT = "must be a string or a list that is not empty, of strings, of token ids or of lists of token ids"
UNREAD = "the server's option --ignore-key lets a key through unread"
DEEP = b'{"input": ' + 200 * b"[" + 200 * b"]" + b"}"
# Bodies of /v1/embeddings, and the message of their error 422.
BODIES = {
    b"": "the request is not valid JSON: Expecting value: line 1 column 1 (char 0)",
    b"[]": "the request must be a JSON object, not []",
    b'{"input": "a"': "the request is not valid JSON: Expecting ',' delimiter: line 1 column 14 (char 13)",
    b'{"input": "\xff"}': "the request is not valid JSON: 'utf-8' codec can't decode byte 0xff in position 11: invalid start byte",
    b'{"input": NaN}': "the request is not valid JSON: NaN is not a JSON number",
    b'{"input": "a", "dimensions": 1e999}': "the request is not valid JSON: a number is beyond the largest float64",
    b'{"input": "a", "input": "b"}': "the request is not valid JSON: input is a duplicate key",
    b'{"input": "\\ud800"}': "the request is not valid JSON: the string '\\ud800' has a lone surrogate",
    b'{"input": "a\x00"}': "the request is not valid JSON: Invalid control character at: line 1 column 13 (char 12)",
    DEEP: "the JSON of the request is nested deeper than 100",
    b"{}": f"input is missing: it {INPUT}",
    b'{"input": null}': f"input is missing: it {INPUT}",
    b'{"input": ""}': "input is empty: it has no tokens",
    b'{"input": ["a", " \\n\\u0000"]}': "input[1] is empty: it has no tokens",
    b'{"input": []}': f"input {INPUT}, not []",
    b'{"input": 5}': f"input {INPUT}, not 5",
    b'{"input": ["a", 5]}': f"input {INPUT}, not ['a', 5]",
    b'{"input": [true]}': f"input {INPUT}, not [True]",
    b'{"input": [1.5]}': f"input {INPUT}, not [1.5]",
    b'{"input": [[]]}': f"input {INPUT}, not [[]]",
    b'{"input": "a", "encoding_format": "int8"}': "encoding_format must be one of 'float', 'base64', not 'int8'",
    b'{"input": "a", "dimensions": 17}': "dimensions must be a whole number from 1 to 16, not 17",
    b'{"input": "a", "dimensions": true}': "dimensions must be a whole number of at least 1, not True",
    b'{"input": "a", "truncate": "yes"}': "truncate must be true or false, not 'yes'",
    b'{"input": "a", "user": {}}': "user must be a string, not {}",
    b'{"input": "a", "tempe\\u001brature": 1}': f"there is no key 'tempe\\x1brature'; the nearest is encoding_format; {UNREAD}",
    b'{"input": "a", "trunkate": null}': f"there is no key trunkate; the nearest is truncate; {UNREAD}",
    b'{"input": "a", "input_type": "query"}': f"there is no key input_type; prompt_name names a prompt of the model; {UNREAD}",
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:40].decode("latin-1"))
def test_a_body_that_is_wrong_is_refused_with_what_is_wrong(serving, body) -> None:
    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", body)
        assert (answer.status, answer.json["error"]["message"]) == (422, BODIES[body])
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert (await client.post("/v1/embeddings", {"input": "a cat"})).status == 200

    serving(test)


def test_a_model_of_another_name_is_not_there(serving) -> None:
    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"})
        assert answer.status == 404
        assert answer.json["error"] == {
            "message": "there is no model 'text-embedding-3-small' here; this server has 'tiny'",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }

    serving(test)


LIMITS = Limits(body_bytes=200, items=3, tokens=20)
# Bodies beyond these limits, and the message of their error 413.
TOO_LARGE = {
    b'{"input": "' + 200 * b"a" + b'"}': "the body of the request exceeds 200 bytes",
    b'{"input": ["a", "a", "a", "a"]}': "input has 4 entries, more than the limit of 3",
    b'{"input": ["the cat sat on a mat", "the cat sat on a mat", "the cat sat on a mat"]}': (
        "the request has more tokens than the limit of 20"
    ),
    b'{"input": [' + 21 * b"5," + b"5]}": "the request has more tokens than the limit of 20",
    b'{"input": [[' + 10 * b"5," + b"5], [" + 9 * b"5," + b"5]]}": "the request has more tokens than the limit of 20",
}


@pytest.mark.parametrize("body", TOO_LARGE, ids=lambda body: TOO_LARGE[body][:30])
def test_a_request_that_is_too_large_is_refused_with_the_limit(serving, body) -> None:
    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", body)
        assert (answer.status, answer.json["error"]["message"]) == (413, TOO_LARGE[body])

    serving(test, limits=LIMITS)


# Texts of more characters than are tokenized at a time, and the message of their error 413.
LONG = {
    "a "
    * 100_000: "input has more than 32,512 tokens, and the model takes at most 10; send truncate: true to truncate it",
    "."
    * 70_000: "input has more than 65,280 tokens, and the model takes at most 10; send truncate: true to truncate it",
}


@pytest.mark.parametrize("text", LONG, ids=["words", "one word"])
def test_tokens_of_a_long_text_are_counted_in_pieces_until_there_are_too_many(
    serving, encoder, monkeypatch, text
) -> None:
    """A text of 4 MB may have 4 million tokens, of 500 bytes each."""
    read: list[int] = []
    encode = type(encoder.tokenizer).encode

    def counted(self, texts, *, with_offsets):
        read.append(sum(map(len, texts)))
        return encode(self, texts, with_offsets=with_offsets)

    monkeypatch.setattr(type(encoder.tokenizer), "encode", counted)

    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": text})
        assert (answer.status, answer.json["error"]["message"]) == (413, LONG[text])
        assert read == [1 << 16]

    serving(test)


def test_a_long_text_is_truncated_to_the_bits_of_encode(serving, encoder) -> None:
    """At a space, where the tokens before it are those of the whole; one without spaces is read whole, if a request may have its tokens."""
    texts = ["the cat " * 20_000, "." * 140_000]

    async def test(client) -> None:
        for text in texts:
            answer = await client.post("/v1/embeddings", {"input": text, "truncate": True})
            expected = encoder.encode([text], overflow="truncate")[0]
            assert np.float32(answer.json["data"][0]["embedding"]).tobytes() == expected.tobytes()
        ranked = await client.post("/v1/rerank", {"query": "." * 70_000, "documents": ["a"], "truncation": True})
        assert ranked.status == 200

    async def limited(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": texts[0], "truncate": True})
        assert answer.status == 200
        answer = await client.post("/v1/embeddings", {"input": texts[1], "truncate": True})
        assert (answer.status, answer.json["error"]["message"]) == (
            413,
            "the request has more tokens than the limit of 20",
        )

    serving(test)
    serving(limited, limits=Limits(tokens=20))


def test_token_ids_are_refused_before_their_text_is_made(serving, encoder) -> None:
    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": [[5], [5] * 13]})
        assert (answer.status, answer.json["error"]["message"]) == (
            413,
            "input[1] has 13 token ids, special ones included, and the model takes at most 12; send truncate: true to truncate it",
        )
        house = encoder.tokenizer.backend.token_to_id("house")
        answer = await client.post(
            "/v1/embeddings", b'{"truncate":true,"input":[%b]}' % b",".join([b"%d" % house] * 50)
        )
        assert (answer.status, answer.json["error"]["message"]) == (413, "input is a text of more than 200 characters")

    serving(test, limits=Limits(body_bytes=200))


def test_a_body_is_not_read_beyond_the_limit_announced_or_not(serving) -> None:
    async def test(client) -> None:
        headers = {"Content_Type": "application/json"}
        parts = [b" " * 150, b" " * 150, AssertionError("it is read")]
        answer = await client.send("POST", "/v1/embeddings", parts, headers)
        assert answer.status == 413
        announced = headers | {"Content_Length": "201"}
        answer = await client.send("POST", "/v1/embeddings", [AssertionError("it is read")], announced)
        assert answer.status == 413

    serving(test, limits=LIMITS)


def test_bodies_of_all_requests_together_are_bounded(serving) -> None:
    async def test(client, held) -> None:
        first = asyncio.ensure_future(client.post("/v1/embeddings", b'{"input": "a cat"' + b" " * 100 + b"}"))
        await held.begun.get()
        second = await client.post("/v1/embeddings", b'{"input": "a dog"' + b" " * 100 + b"}")
        assert second.status == 429
        assert second.headers["retry-after"] == "1"
        assert second.json["error"] == {
            "message": "the server is busy: the requests that are not answered are too large together; retry in a second",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }
        held.go()
        assert (await first).status == 200

    serving(test, hold=True, limits=Limits(all_bodies_bytes=200))


@pytest.mark.parametrize("most", [{"queue_requests": 1}, {"queue_items": 3}, {"queue_tokens": 12}])
def test_a_full_queue_is_said_and_what_is_in_it_is_computed(serving, most) -> None:
    async def test(client, held) -> None:
        first = asyncio.ensure_future(client.post("/v1/embeddings", {"input": ["a cat", "a dog"]}))
        await held.begun.get()
        second = await client.post("/v1/embeddings", {"input": ["a house", "a mat"]})
        assert second.status == 429
        assert second.json["error"]["message"] == "the server is busy: too much waits already; retry in a second"
        ranked = await client.post("/v1/rerank", {"query": "a", "documents": ["b", "c"]})
        assert (ranked.status, ranked.json["message"]) == (429, second.json["error"]["message"])
        held.go()
        assert (await first).status == 200
        assert client.service.scheduler.held == (0, 0, 0)

    serving(test, hold=True, limits=Limits(**most))


def test_a_request_that_is_not_answered_in_time_is_given_up(serving) -> None:
    async def test(client, held) -> None:
        answer = await client.post("/v1/embeddings", {"input": "a cat"})
        assert answer.status == 504
        assert answer.json["error"] == {
            "message": "the request was not answered within 0 seconds; retry later, or send less at once",
            "type": "server_error",
            "param": None,
            "code": "timeout",
        }

    serving(test, hold=True, limits=Limits(seconds=0.0))


def test_a_body_that_does_not_come_to_an_end_is_given_up(serving) -> None:
    async def test(client) -> None:
        headers = {"Content_Type": "application/json"}
        answer = await client.send("POST", "/v1/embeddings", [], headers)  # nothing arrives
        assert (answer.status, answer.json["error"]["message"]) == (
            408,
            "the body of the request was not complete within 0 seconds",
        )

    serving(test, limits=Limits(body_seconds=0.0))


def test_a_client_that_leaves_while_it_sends_gets_nothing(serving) -> None:
    async def test(client) -> None:
        gone = asyncio.Event()
        gone.set()
        answer = await client.send("POST", "/v1/embeddings", [], {"Content_Type": "application/json"}, gone)
        assert answer.status == 0

    serving(test)


def test_a_large_body_holds_up_no_small_one(serving, monkeypatch) -> None:
    """Eight texts of 4 MB take a tokenizer half a minute."""
    go = threading.Event()

    async def test(client) -> None:
        prepare = client.service.prepare

        def waits(path: str, body: bytes):
            if len(body) > 1 << 18:
                assert go.wait(HANG)
            return prepare(path, body)

        client.service.prepare = waits
        blank = b" " * (1 << 18)
        large = [
            asyncio.ensure_future(client.post("/v1/embeddings", b'{"input": "a cat"' + blank + b"}")) for _ in range(4)
        ]
        assert (await client.post("/v1/embeddings", {"input": "a dog"})).status == 200
        go.set()
        assert [(await each).status for each in large] == [200] * 4

    serving(test)


def test_keys_that_change_no_number_are_let_through(serving, encoder) -> None:
    extra = {"metadata": {"user": "a"}, "proxy_server_request": {"url": "b"}}

    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": "a cat"} | extra)
        assert np.float32(answer.json["data"][0]["embedding"]).tobytes() == encoder.encode(["a cat"])[0].tobytes()
        for body in ({"query": "a", "documents": ["b"]}, {"query": "a", "texts": ["b"]}):
            assert (await client.post("/rerank", body | extra)).status == 200
            answer = await client.post("/rerank", body | {"rank_fields": ["text"]})
            assert answer.status == 422

    async def ignoring(client) -> None:
        body = {"input": "a cat", "input_type": "query", "dimensions": 0}
        answer = await client.post("/v1/embeddings", body)
        assert answer.json["error"]["message"] == "dimensions must be a whole number of at least 1, not 0"
        assert (await client.post("/v1/embeddings", body | {"dimensions": 5})).status == 200

    serving(test)
    serving(ignoring, limits=Limits(unread_keys=("input_type", "dimensions")))


def test_other_methods_paths_types_and_headers(serving) -> None:
    async def test(client) -> None:
        answer = await client.get("/v1/embeddings")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        answer = await client.post("/health", {})
        assert (answer.status, answer.headers["allow"]) == (405, "GET")
        assert (await client.get("/health", method="HEAD")).status == 200
        answer = await client.get("/v1/chat/completions")
        assert answer.json["error"]["message"] == "there is no such path; /docs lists those that there are"
        answer = await client.post("/v1/embeddings", {"input": "a"}, Content_Type="text/plain")
        assert (answer.status, answer.json["error"]["message"]) == (
            415,
            "the Content-Type of a request must be application/json",
        )
        answer = await client.get("/health", Cookie="a" * (1 << 15))
        assert (answer.status, answer.json["error"]["message"]) == (431, "URL and headers exceed 32768 bytes")

    serving(test)


def test_an_error_of_the_model_is_in_the_log_and_not_in_the_response(serving, encoder, caplog) -> None:
    def fail(texts, kind):
        raise RuntimeError("a secret")

    async def test(client) -> None:
        answer = await client.post("/v1/embeddings", {"input": "a cat"})
        assert answer.status == 500
        assert answer.json["error"]["message"] == "internal error; the server's log has the traceback"
        assert b"secret" not in answer.body

    serving(test, run=fail)
    assert "a secret" in caplog.text


def test_keys(serving) -> None:
    from uwaga.serve.app import digest_of

    async def test(client) -> None:
        body = {"input": "a cat"}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic key-of-somebody"}):
            for answer in (
                await client.post("/v1/embeddings", body, **headers),
                await client.get("/metrics", **headers),
                await client.get("/v1/models", **headers),
            ):
                assert answer.status == 401
                assert answer.json["error"] == {
                    "message": "the key is missing or wrong: send the header Authorization: Bearer KEY",
                    "type": "authentication_error",
                    "param": None,
                    "code": "invalid_api_key",
                }
        right = {"Authorization": "Bearer key-of-somebody"}
        assert (await client.post("/v1/embeddings", body, **right)).status == 200
        assert (await client.get("/v1/models", **right)).json["data"][0]["id"] == "tiny"
        assert (await client.get("/health")).status == 200

    serving(test, keys=frozenset([digest_of("key-of-somebody")]))
