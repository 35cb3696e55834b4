"""What a server says of itself: health, metrics, its models, the OpenAPI description and its page."""

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest
from documents import DOCS, blocks, commands
from served import served

from uwaga import TextEncoder
from uwaga.serve.metrics import PATHS
from uwaga.serve.requests import POSTED, Limits


@served()
async def test_an_answer_is_counted_before_its_client_has_it(client) -> None:
    """The process may be killed as soon as a client has its answer."""
    client.service.metrics.answered = lambda *_: client.events.append("counted")
    await client.get("/health")
    await client.get("/nowhere")
    await client.post("/v1/embeddings", {"input": "the cat"})
    assert client.events == ["http.response.start", "counted", "http.response.body"] * 3


@served()
async def test_health_models_and_metrics(client) -> None:
    health = await client.get("/health")
    queue = {"requests": 0, "items": 0, "tokens": 0}
    assert (health.status, health.json) == (200, {"status": "ok", "model": "tiny", "queue": queue})
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


def test_each_request_is_logged_as_one_line_with_nothing_that_a_terminal_obeys(serving) -> None:
    lines: list[str] = []

    async def test(client) -> None:
        await client.post("/v1/embeddings", {"input": "a cat"})
        await client.get("/\x1b[2J\n2026-11-28 203.0.113.7 GET /forged 200")
        await client.get("/" + "x" * 1000, method="D\u202eEL")
        gone = asyncio.Event()
        gone.set()
        await client.post("/embed", {"inputs": "a cat"}, gone=gone)

    serving(test, log=lines.append)
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
    said = [re.fullmatch(rf"{time} 127\.0\.0\.1 (.*) \d+\.\d ms", line)[1] for line in lines]
    assert said == [
        "POST /v1/embeddings 200",
        r"GET '/\x1b[2J\n2026-11-28 203.0.113.7 GET /forged 200' 404",
        r"'D\u202eEL' /" + "x" * 199 + "... 404",
        "POST /embed -",
    ]


@served(limits=Limits(items=7))
async def test_the_description_has_every_path_and_every_key_that_is_read(client) -> None:
    described = (await client.get("/openapi.json")).json
    assert [*described["paths"], "other"] == list(PATHS)
    for path, methods in described["paths"].items():
        for method in ("GET", "HEAD", "POST"):
            answer = await client.get(path, method=method)
            allowed = "post" if "post" in methods else "get"
            assert (answer.status == 405) != (method.lower().replace("head", "get") == allowed)
            assert answer.headers.get("allow", allowed.upper()) == allowed.upper()

    def schemas(path: str) -> list[dict]:
        content = described["paths"][path]["post"]["requestBody"]["content"]
        return content["application/json"]["schema"]["oneOf"]

    # Of each key a value that is wrong, so that the server says that it knows it.
    for path, schema in ((posted, schema) for posted in POSTED for schema in schemas(posted)):
        right = {"input": "a", "inputs": "a", "query": "a", "documents": ["a"], "texts": ["a"]}
        for key in schema["properties"]:
            body = {name: right[name] for name in schema["required"]} | {key: {"wrong": 1}}
            answer = await client.post(path, body)
            assert answer.status == 422
            assert re.search(rf"\b{key} must be ", answer.body.decode()), (path, key)
        assert list(schema["patternProperties"]) == ["^(metadata|proxy_server_request)$"]


@served()
async def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(client) -> None:
    client.service.name = "<script>alert(1)</script>"
    answer = await type(client)(client.service).get("/docs")
    tags = re.findall(r"<(\w+)([^>]*)>", answer.body.decode())
    shown = {"html", "meta", "title", "style", "h1", "h2", "p", "code", "pre", "details", "summary"}
    assert {tag for tag, _ in tags} <= shown
    assert {name for _, rest in tags for name in re.findall(r"(\w+)=", rest)} == {"lang", "charset"}
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "/v1/embeddings" in answer.body.decode()


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
        assert [answer.status for answer in answers] == [200] * 3
        ranked = [(row["index"], f"{row['relevance_score']:.2f}") for row in answers[-1].json["results"]]
        assert ranked == [(1, said[1]), (0, said[2])]
        assert "cat" in json.loads(asked[-1][-1])["documents"][1]

    serving(test, encoder=TextEncoder.load(minilm))
