"""/v1/rerank and its other paths: scores, forms and errors."""

import asyncio

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
        top = (await client.post(path, asked | {"top_n": 2, "return_documents": True})).json
        assert [row["document"]["text"] for row in top["results"]] == [PASSAGES[index] for index in order[:2]]
        assert [row["relevance_score"] for row in top["results"]] == scores[:2]
    equal = (await client.post("/v1/rerank", {"query": "a", "documents": ["the cat", "the cat", "the cat"]})).json
    assert [row["index"] for row in equal["results"]] == [0, 1, 2]


@served()
async def test_a_score_does_not_depend_on_the_other_documents(client) -> None:
    answer = (await client.post("/v1/rerank", {"query": QUERY, "documents": PASSAGES})).json["results"]
    for row in answer:
        asked = {"query": QUERY, "documents": [PASSAGES[row["index"]]]}
        (alone,) = (await client.post("/v1/rerank", asked)).json["results"]
        assert alone["relevance_score"] == row["relevance_score"]


@served()
async def test_prompts_of_queries_and_passages_are_put_before_them(client, encoder) -> None:
    client.service.model.prompts = {"query": "dog ", "document": "house "}
    prompted = (await client.post("/v1/rerank", {"query": "cat", "documents": ["mat", "it"]})).json
    client.service.model.prompts = {"query": "", "document": ""}
    asked = {"query": "dog cat", "documents": ["house mat", "house it"]}
    assert (await client.post("/v1/rerank", asked)).json["results"] == prompted["results"]


def test_an_error_names_what_was_sent_and_what_is_accepted(serving, reranker) -> None:
    long = "the cat sat on the mat and then it ran away from the house"
    asked = {"/v1/embeddings": {"input": ["a", long]}, "/v1/rerank": {"query": "a", "documents": ["a", long]}}

    async def test(client) -> None:
        for path, body in asked.items():
            *_, key = body
            for wrong, place in ((body, f"{key}[1]"), (body | {"query": long, key: ["a"]}, "query")):
                if place in ("query", f"{key}[1]") and (path, place) != ("/v1/embeddings", "query"):
                    answer = await client.post(path, wrong)
                    message = answer.json["error"]["message"]
                    assert (answer.status, answer.json["error"]["param"]) == (413, place.partition("[")[0])
                    assert message.startswith(f"{place} has more than ")
                    assert message.endswith("; send truncate: true to truncate it")
                    assert (await client.post(path, wrong | {"truncate": True})).status == 200

    serving(test)
    # Of as few tokens as the embedding model takes.
    serving(test, reranker=Reranker(reranker.model, reranker.tokenizer, max_tokens=12, has_sigmoid=True))


@pytest.mark.parametrize("is_cross", [False, True])
def test_documents_are_cut_by_their_own_tokens(serving, reranker, is_cross) -> None:
    """Cohere's max_tokens_per_doc reads so many first tokens."""
    long = "the cat sat on the mat and then it ran away from the house and the dog sat on the mat"

    async def test(client) -> None:
        async def scores(documents: list[str], **options: object) -> list[float]:
            body = {"query": QUERY, "documents": documents} | options
            answer = await client.post("/v2/rerank", body)
            assert answer.status == 200, answer.body
            scored = {row["index"]: row["relevance_score"] for row in answer.json["results"]}
            return [scored[index] for index in range(len(documents))]

        assert await scores([long, "a dog"], max_tokens_per_doc=3) == await scores(["the cat sat", "a dog"])
        assert await scores(["a dog "], max_tokens_per_doc=4096) == await scores(["a dog "])
        answer = await client.post("/v1/rerank", {"query": QUERY, "documents": [long], "max_tokens_per_doc": 16})
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
        embedded = (await client.post("/v1/embeddings", {"input": QUERY})).json["data"][0]["embedding"]
        assert np.float32(embedded).tobytes() == encoder.encode([QUERY])[0].tobytes()
        long = "the cat sat on the mat and then it ran away from the house and then"
        cut = await client.post("/v1/rerank", {"query": QUERY, "documents": [long], "truncate": True})
        assert cut.json["results"][0]["relevance_score"] == reranker.rank(QUERY, [long], overflow="truncate").scores[0]

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
        message = f"documents[2] has a {what} that is NaN or infinite; leave it out"
        assert bad.json["error"]["message"].startswith(message)
        assert bad.json["detail"] == bad.json["error"]["message"]  # as Jina's clients read it
        if not is_cross:
            answer = await client.post("/v1/rerank", {"query": "the dog", "documents": ["a cat"]})
            assert answer.json["detail"].startswith("query has a vector that is NaN")

    serving(test, reranker=reranker)
