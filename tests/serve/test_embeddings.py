"""/v1/embeddings: the forms of its input and output, and the bits of its vectors."""

import asyncio
import base64
import json
import random

import numpy as np
from served import served
from tiny_tokenizer import SPECIAL, WORDS

from uwaga.serve.scheduler import ITEM_TOKENS

LONG = "the cat sat on the mat and then it ran away from the house"
TEXTS = ["the cat sat on the mat", "a dog", "it ran away, unbelievable.", "the house and the cat and the dog", "Cat"]


def vectors(answer) -> np.ndarray:
    assert answer.status == 200, answer.body
    data = answer.json["data"]
    assert [row["index"] for row in data] == list(range(len(data)))
    numbers = [row["embedding"] for row in data]
    decoded = [np.frombuffer(base64.b64decode(n), "<f4") if isinstance(n, str) else np.float32(n) for n in numbers]
    return np.stack(decoded)


@served()
async def test_vectors_are_byte_for_byte_those_of_encode(client, encoder) -> None:
    for encoding in ("float", "base64"):
        answer = await client.post("/v1/embeddings", {"input": TEXTS, "model": "tiny", "encoding_format": encoding})
        assert vectors(answer).tobytes() == encoder.encode(TEXTS).tobytes()
        tokens = int(encoder.report.tokens.sum())
        assert answer.json["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert (answer.json["object"], answer.json["model"]) == ("list", "tiny")
        assert answer.headers["content-length"] == str(len(answer.body))
    answer = await client.post("/v1/embeddings", {"input": TEXTS[0], "user": "someone"})
    assert vectors(answer).tobytes() == encoder.encode(TEXTS[:1]).tobytes()
    many = TEXTS * 100  # whose response is sent in pieces
    answer = await client.post("/v1/embeddings", {"input": many})
    assert "content-length" not in answer.headers
    assert vectors(answer).tobytes() == encoder.encode(many).tobytes()
    answer = await client.post("/v1/embeddings", {"input": ["a", LONG], "truncate": True})
    assert vectors(answer).tobytes() == encoder.encode(["a", LONG], overflow="truncate").tobytes()
    assert answer.json["usage"]["total_tokens"] == 3 + 12


@served()
async def test_dimensions_are_the_first_numbers(client, encoder) -> None:
    answer = await client.post("/v1/embeddings", {"input": TEXTS, "dimensions": 3})
    assert vectors(answer).tobytes() == np.ascontiguousarray(encoder.encode(TEXTS)[:, :3]).tobytes()
    client.service.model.has_unit_vectors = True
    answer = await client.post("/v1/embeddings", {"input": TEXTS, "dimensions": 3})
    assert vectors(answer).tobytes() == encoder.encode(TEXTS, truncate_dim=3, normalize=True).tobytes()


@served()
async def test_a_prompt_is_put_before_the_texts(client, encoder) -> None:
    expected = encoder.encode(["the dog and a cat"])
    client.service.model.prompts = {"query": "the dog and ", "document": ""}
    answer = await client.post("/v1/embeddings", {"input": ["a cat"], "prompt_name": "query"})
    assert vectors(answer).tobytes() == expected.tobytes()


@served(step_tokens=50)
async def test_whoever_else_asks_a_text_has_the_same_bits(client, encoder) -> None:
    """40 clients at once with 1 to 9 texts each, in steps that mix them."""
    rng = random.Random(3)
    words = [word for word in WORDS if word[0] not in "#.,"]
    asked = [[" ".join(rng.choices(words, k=rng.randint(1, 10))) for _ in range(rng.randint(1, 9))] for _ in range(40)]
    answers = await asyncio.gather(*(client.post("/v1/embeddings", {"input": texts}) for texts in asked))
    for texts, answer in zip(asked, answers, strict=True):
        alone = np.concatenate([encoder.encode([text]) for text in texts])
        assert vectors(answer).tobytes() == alone.tobytes()


@served(hold=True)
async def test_what_waits_is_packed_as_soon_as_the_model_is_free(client, held, encoder) -> None:
    first = asyncio.ensure_future(client.post("/v1/embeddings", {"input": "a dog"}))
    assert await held.begun.get() == ["a dog"]
    others = [asyncio.ensure_future(client.post("/v1/embeddings", {"input": text})) for text in TEXTS]
    tokens = sum(len(encoder.tokenizer.with_special_tokens([text])[0]) for text in ["a dog", *TEXTS])
    while client.service.scheduler.held < tokens + 6 * ITEM_TOKENS:
        await asyncio.sleep(0)
    held.go()
    assert sorted(await held.begun.get()) == sorted(TEXTS)
    held.go()
    answers = await asyncio.gather(first, *others)
    assert held.begun.empty()
    assert vectors(answers[0]).tobytes() == encoder.encode(["a dog"]).tobytes()
    for text, answer in zip(TEXTS, answers[1:], strict=True):
        assert vectors(answer).tobytes() == encoder.encode([text]).tobytes()


@served(hold=True)
async def test_a_client_that_leaves_is_not_computed_for(client, held) -> None:
    gone = asyncio.Event()
    first = asyncio.ensure_future(client.post("/v1/embeddings", {"input": "a dog"}))
    await held.begun.get()
    second = asyncio.ensure_future(client.post("/v1/embeddings", {"input": ["the cat"] * 50}, gone=gone))
    third = asyncio.ensure_future(client.post("/v1/embeddings", {"input": "a house"}))
    two, all_three = 2 * (4 + ITEM_TOKENS), 52 * (4 + ITEM_TOKENS)
    while client.service.scheduler.held < all_three:
        await asyncio.sleep(0)
    gone.set()
    assert (await second).status == 0
    assert client.service.scheduler.held == two
    held.go()
    assert await held.begun.get() == ["a house"]
    held.go()
    assert [(await task).status for task in (first, third)] == [200, 200]
    assert "uwaga_disconnects_total 1.0" in (await client.get("/metrics")).body.decode()


def test_numbers_in_json_lose_no_bit() -> None:
    from uwaga.serve.app import _embeddings_json

    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1 << 32, 20000, np.uint64).astype(np.uint32).view(np.float32)
    numbers = numbers[np.isfinite(numbers)][None]
    (data,) = json.loads(b"".join(_embeddings_json(numbers, is_base64=False, name="m", tokens=1)))["data"]
    assert np.float32(data["embedding"]).tobytes() == numbers.tobytes()


@served()
async def test_a_vector_that_is_not_finite_is_an_error_of_its_own_request(client, encoder) -> None:
    encoder.model.embeddings.token_embedding.weight.data[(SPECIAL + WORDS).index("dog")] = float("nan")
    bad, one, good = await asyncio.gather(
        client.post("/v1/embeddings", {"input": ["the cat", "a dog"], "encoding_format": "base64"}),
        client.post("/v1/embeddings", {"input": "a dog", "dimensions": 2}),
        client.post("/v1/embeddings", {"input": ["the cat", "it"]}),
    )
    assert (bad.status, one.status, good.status) == (422, 422, 200)
    for answer, place in ((bad, "input[1]"), (one, "input")):
        assert answer.json["error"]["message"].startswith(f"{place} has a vector that is NaN or infinite; leave it")
