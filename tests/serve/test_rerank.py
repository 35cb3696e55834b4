"""/v1/rerank and its other paths: scores, forms and errors."""

import asyncio
import re

import numpy as np
import pytest
from served import served
from tiny_tokenizer import SPECIAL, WORDS
from tiny_transformer import tiny

from uwaga import Reranker

DOG = (SPECIAL + WORDS).index("dog")
QUERY, PASSAGES = "the cat", ["a dog ran away", "the cat sat on the mat", "the house", "the cat"]


def cosines(encoder) -> list[float]:
    query, *passages = (encoder.encode([text])[0].astype(np.float64) for text in [QUERY, *PASSAGES])
    norm = np.linalg.norm
    return [float(query @ passage / norm(query) / norm(passage)) for passage in passages]


@served()
async def test_cohere_and_jina(client, encoder) -> None:
    expected = cosines(encoder)
    order = sorted(range(4), key=lambda index: -expected[index])
    asked = {"model": "tiny", "query": QUERY, "documents": PASSAGES}
    for path in ("/v1/rerank", "/v2/rerank"):
        answer = (await client.post(path, asked)).json
        assert [row["index"] for row in answer["results"]] == order
        assert all(row.keys() == {"index", "relevance_score"} for row in answer["results"])
        scores = [row["relevance_score"] for row in answer["results"]]
        np.testing.assert_allclose(scores, [expected[index] for index in order], rtol=1e-12)
        assert answer["usage"]["total_tokens"] == 4 + 6 + 8 + 4 + 4
        objects = [{"text": text} for text in PASSAGES]
        top = (await client.post(path, asked | {"documents": objects, "top_n": 2, "return_documents": True})).json
        assert [row["document"]["text"] for row in top["results"]] == [PASSAGES[index] for index in order[:2]]
        assert [row["relevance_score"] for row in top["results"]] == scores[:2]
    equal = (await client.post("/v1/rerank", {"query": "a", "documents": ["the cat", "the cat", "the cat"]})).json
    assert [row["index"] for row in equal["results"]] == [0, 1, 2]


@served()
async def test_tei(client, encoder) -> None:
    """A score does not depend on the other passages."""
    expected = cosines(encoder)
    answer = (await client.post("/rerank", {"query": QUERY, "texts": PASSAGES, "return_text": True})).json
    assert [row["index"] for row in answer] == sorted(range(4), key=lambda index: -expected[index])
    assert all(row["text"] == PASSAGES[row["index"]] for row in answer)
    bare = (await client.post("/rerank", {"query": QUERY, "texts": PASSAGES, "raw_scores": True})).json
    assert [row["score"] for row in bare] == [row["score"] for row in answer]
    for row in answer:
        (alone,) = (await client.post("/rerank", {"query": QUERY, "texts": [row["text"]]})).json
        assert alone["score"] == row["score"]


@served()
async def test_prompts_of_queries_and_passages_are_put_before_them(client, encoder) -> None:
    client.service.model.prompts = {"query": "dog ", "document": "house "}
    prompted = (await client.post("/rerank", {"query": "cat", "texts": ["mat", "it"]})).json
    client.service.model.prompts = {"query": "", "document": ""}
    written = (await client.post("/rerank", {"query": "dog cat", "texts": ["house mat", "house it"]})).json
    assert prompted == written


def test_an_error_names_the_keys_of_its_interface(serving, reranker) -> None:
    """What an error advises is accepted there, and what it names is what was sent."""
    long = "the cat sat on the mat and then it ran away from the house"
    interfaces = [  # path, what else the body has, and the key of its texts
        ("/v1/embeddings", {}, "input"),
        ("/embed", {}, "inputs"),
        *[(path, {"query": "a"}, "documents") for path in ("/v1/rerank", "/v2/rerank", "/rerank")],
        *[(path, {"query": "a"}, "texts") for path in ("/v1/rerank", "/v2/rerank", "/rerank")],
    ]

    async def test(client) -> None:
        for path, rest, key in interfaces:
            for body, place in [
                (rest | {key: ["a", long]}, f"{key}[1]"),
                (rest | {key: [long]}, f"{key}[0]"),
                *[(rest | {key: ["a"], "query": long}, "query")] * bool(rest),
            ]:
                answer = await client.post(path, body)
                message = answer.body.decode()
                assert answer.status == 413
                advised = re.search(rf"\b{re.escape(place)} has .*; send (\w+): true to truncate it", message)
                assert advised, (path, body, message)
                assert (await client.post(path, body | {advised[1]: True})).status == 200

    serving(test)
    # Of as few tokens as the embedding model takes.
    serving(test, reranker=Reranker(reranker.model, reranker.tokenizer, max_tokens=12, has_sigmoid=True))


@pytest.mark.parametrize("is_cross", [False, True])
def test_documents_are_cut_by_their_own_tokens(serving, encoder, reranker, is_cross) -> None:
    """Cohere's max_tokens_per_doc reads so many first tokens, max_chunks_per_doc the best of so many parts as long as the model takes."""
    long = "the cat sat on the mat and then it ran away from the house and the dog sat on the mat"
    words = long.split()
    size = (
        17 - len(reranker.tokenize([(QUERY, "a")])[0]) if is_cross else 10
    )  # tokens of a passage that the model takes
    parts = [" ".join(words[at : at + size]) for at in range(0, len(words), size)]
    assert len(parts) >= 2

    async def test(client) -> None:
        async def scores(documents: list[str], **options: object) -> list[float]:
            body = {"query": QUERY, "documents": documents} | options
            answer = await client.post("/v2/rerank", body)
            assert answer.status == 200, answer.body
            scored = {row["index"]: row["relevance_score"] for row in answer.json["results"]}
            return [scored[index] for index in range(len(documents))]

        assert await scores([long, "a dog"], max_tokens_per_doc=3) == await scores(["the cat sat", "a dog"])
        assert await scores(["a dog "], max_tokens_per_doc=4096) == await scores(["a dog "])
        of_parts = await scores(parts)
        assert await scores([long, "a dog"], max_chunks_per_doc=9) == [max(of_parts), *await scores(["a dog"])]
        assert await scores([long], max_chunks_per_doc=1) == of_parts[:1]
        assert await scores([long], max_chunks_per_doc=9, max_tokens_per_doc=size + 1) == [
            max(await scores([parts[0], words[size]]))
        ]
        answer = await client.post("/v1/rerank", {"query": QUERY, "documents": [long], "max_tokens_per_doc": size + 1})
        assert answer.status == 413

    serving(test, reranker=reranker if is_cross else None)


@pytest.fixture
def reranker(encoder):
    """A cross-encoder with the tokenizer of the embedding model: whose pairs it cannot tell from one text."""
    head = {"outputs": ("pooled", "sequence"), "labels": ("relevance",), "max_position_embeddings": 16}
    model = tiny("bert", seed=1, vocab_size=encoder.tokenizer.vocab_size, num_layers=1, num_heads=2, **head)
    return Reranker(model, encoder.tokenizer, max_tokens=16, has_sigmoid=True)


def test_a_cross_encoder_ranks_where_there_is_one(serving, encoder, reranker) -> None:
    async def test(client) -> None:
        expected = reranker.rank(QUERY, PASSAGES)
        answer = (await client.post("/v1/rerank", {"query": QUERY, "documents": PASSAGES})).json["results"]
        assert [row["index"] for row in answer] == expected.indices.tolist()
        assert [row["relevance_score"] for row in answer] == expected.scores.tolist()
        raw = reranker.scores([(QUERY, text) for text in PASSAGES], raw=True)
        answer = (await client.post("/rerank", {"query": QUERY, "texts": PASSAGES, "raw_scores": True})).json
        assert {row["index"]: row["score"] for row in answer} == dict(enumerate(raw.tolist()))
        embedded = (await client.post("/v1/embeddings", {"input": QUERY})).json["data"][0]["embedding"]
        assert np.float32(embedded).tobytes() == encoder.encode([QUERY])[0].tobytes()
        long = "the cat sat on the mat and then it ran away from the house and then"
        cut = (await client.post("/v1/rerank", {"query": QUERY, "documents": [long], "truncation": True})).json[
            "results"
        ]
        assert cut[0]["relevance_score"] == reranker.rank(QUERY, [long], overflow="truncate").scores[0]

    serving(test, reranker=reranker)


@pytest.mark.parametrize("is_cross", [False, True])
def test_a_score_that_is_not_finite_is_an_error_of_its_own_request(serving, encoder, write_reranker, is_cross) -> None:
    """JSON has neither NaN nor Infinity."""
    reranker = Reranker.load(write_reranker()) if is_cross else None
    spoilt, what = (reranker, "score") if reranker else (encoder, "vector")
    spoilt.model.embeddings.token_embedding.weight.data[DOG] = float("inf")

    async def test(client) -> None:
        asked = {"query": QUERY, "documents": ["a cat", "the house", "the dog"]}
        bad, good = await asyncio.gather(
            client.post("/v1/rerank", asked), client.post("/v1/rerank", asked | {"documents": ["a cat"]})
        )
        assert (bad.status, good.status) == (422, 200)
        assert bad.json["message"].startswith(f"documents[2] has a {what} that is NaN or infinite; leave it out")
        for raw in (False, True):
            answer = await client.post("/rerank", {"query": QUERY, "texts": ["a dog"], "raw_scores": raw})
            assert answer.json["error"].startswith(f"texts[0] has a {what} that is NaN or infinite")
        if not is_cross:
            answer = await client.post("/rerank", {"query": "the dog", "texts": ["a cat"]})
            assert answer.json["error"].startswith("query has a vector that is NaN")

    serving(test, reranker=reranker)
