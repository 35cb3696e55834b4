"""What a server says of itself: health, metrics, its models and the OpenAPI description."""

import json
import re
import shlex
from pathlib import Path

import pytest
from documents import DOCS, blocks, commands
from served import served

from uwaga import TextEncoder
from uwaga.serve.requests import GOT, POSTED


@served()
async def test_an_answer_is_counted_before_its_client_has_it(client) -> None:
    """The process may be killed as soon as a client has its answer."""
    client.service.count = lambda *_: client.events.append("counted")
    await client.get("/health")
    await client.get("/nowhere")
    await client.post("/v1/embeddings", {"input": "the cat"})
    assert client.events == ["http.response.start", "counted", "http.response.body"] * 3


@served()
async def test_health_models_and_metrics(client) -> None:
    health = await client.get("/health")
    assert (health.status, health.json) == (200, {"status": "ok", "model": "tiny", "queue_tokens": 0})
    assert [model["id"] for model in (await client.get("/v1/models")).json["data"]] == ["tiny"]
    assert health.headers["x-content-type-options"] == "nosniff"
    await client.post("/v1/embeddings", {"input": ["a cat", "a dog"]})
    await client.post("/v1/embeddings", b"no JSON")
    await client.get("/" + "x" * 100)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if line[0] != "#")
    assert values['uwaga_requests_total{path="/v1/embeddings",status="200"}'] == "1.0"
    assert values['uwaga_requests_total{path="/v1/embeddings",status="422"}'] == "1.0"
    assert values['uwaga_requests_total{path="other",status="404"}'] == "1.0"
    assert values['uwaga_request_seconds_count{path="/v1/embeddings"}'] == "2.0"
    assert values["uwaga_step_tokens_sum"] == "8.0"
    assert values["uwaga_queue_tokens"] == "0.0"
    assert values["uwaga_disconnects_total"] == "0.0"


@served()
async def test_the_description_has_every_path_and_every_key_that_is_read(client) -> None:
    described = (await client.get("/openapi.json")).json
    assert {*described["paths"]} == {*POSTED, *GOT}
    for path, methods in described["paths"].items():
        for method in ("GET", "HEAD", "POST"):
            answer = await client.get(path, method=method)
            allowed = "post" if "post" in methods else "get"
            assert (answer.status == 405) != (method.lower().replace("head", "get") == allowed)
            assert answer.headers.get("allow", allowed.upper()) == allowed.upper()

    # Of each key a value that is wrong, so that the server says that it knows it.
    right = {"input": "a", "query": "a", "documents": ["a"]}
    for path in POSTED:
        body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for key in body["properties"]:
            answer = await client.post(path, {name: right[name] for name in body["required"]} | {key: {"wrong": 1}})
            assert answer.status == 422
            assert answer.json["error"]["message"].startswith(f"{key} must be ")


@pytest.mark.slow
def test_the_commands_of_the_page_are_answered_as_it_says(minilm: Path, serving) -> None:
    page = DOCS / "guides" / "serve.md"
    shown = [command for block in blocks(page) for command, _ in commands(block.text)]
    asked = [shlex.split(command) for command in shown if command.startswith("curl ")]
    text = " ".join(page.read_text(encoding="utf-8").split())
    said = re.search(r"the cat first \(`index` 1, score (.*?)\) and then the dog \(`index` 0, score (.*?)\)", text)
    assert said is not None

    async def test(client) -> None:
        answers = [await client.post(url.partition(":8000")[2], body.encode()) for _, url, _, _, _, body in asked]
        assert [answer.status for answer in answers] == [200] * 2
        ranked = [(row["index"], f"{row['relevance_score']:.2f}") for row in answers[-1].json["results"]]
        assert ranked == [(1, said[1]), (0, said[2])]
        assert "cat" in json.loads(asked[-1][-1])["documents"][1]

    serving(test, encoder=TextEncoder.load(minilm))
